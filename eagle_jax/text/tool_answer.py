"""One answer that may call functions, as OpenAI's responses tell it."""

from collections.abc import Sequence
from typing import Any

from eagle_jax.text.detokenize import decode
from eagle_jax.text.tool_calls import CallReader, ToolCall, ToolFormat, call_id
from eagle_jax.text.tools import Tools


class ToolAnswer:
    """One answer that may call functions, told piece by piece.

    Args:
        tokenizer: the model's.
        format: how the model writes calls.
        tools: those that there are.
        id: of the answer; ids of calls follow from it.

    Attributes:
        content: the text of the answer so far, without calls.
        calls: the calls so far, in OpenAI's form.
    """

    def __init__(self, tokenizer: Any, format: ToolFormat, tools: Tools, id: str):
        self._tokenizer, self._format, self._id = tokenizer, format, id
        self._reader = CallReader(format, tools.names, tools.parallel)
        self._marks = _hidden(tokenizer, format)
        self._ids: list[int] = []
        self._plain, self._read = "", 0
        self.content = ""
        self.calls: list[dict[str, Any]] = []

    def add(self, token_ids: Sequence[int], new: str, is_last: bool) -> list[dict[str, Any]]:
        """Deltas of a message, for more tokens, whose own text is `new`."""
        self._ids += token_ids
        self._plain += new
        shown = self._shown()
        pieces = self._reader.add(shown[self._read :]) + (self._reader.end() if is_last else [])
        self._read = len(shown)
        return [delta for piece in pieces for delta in self._deltas(piece)]

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word for an answer that ends in calls."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    @property
    def message(self) -> dict[str, Any]:
        """The complete answer."""
        message = {"role": "assistant", "content": self.content or (None if self.calls else ""), "refusal": None}
        return message | ({"tool_calls": self.calls} if self.calls else {})

    def _deltas(self, piece: str | ToolCall) -> list[dict[str, Any]]:
        if isinstance(piece, str):
            self.content += piece
            return [{"content": piece}]
        index, function = len(self.calls), {"name": piece.name, "arguments": piece.arguments}
        call = {"id": call_id(self._format, self._id, index), "type": "function", "function": function}
        self.calls.append(call)
        named = {"index": index} | call | {"function": function | {"arguments": ""}}
        return [
            {"tool_calls": [named]},
            {"tool_calls": [{"index": index, "function": {"arguments": piece.arguments}}]},
        ]

    def _shown(self) -> str:
        """The text so far, with the marks of calls that are special tokens, which have no text of their own."""
        if not any(id_ in self._marks for id_ in self._ids):
            return self._plain
        parts: list[str] = []
        run: list[int] = []
        for id_ in [*self._ids, None]:
            if id_ is None or id_ in self._marks:
                parts += [decode(self._tokenizer, run), "" if id_ is None else self._marks[id_]]
                run = []
            else:
                run.append(id_)
        whole = "".join(parts)
        return whole[: len(whole) - (len(decode(self._tokenizer, self._ids)) - len(self._plain))]


def _hidden(tokenizer: Any, format: ToolFormat) -> dict[int, str]:
    """The marks of a format that are special tokens, by their ids."""
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in (format.begin, format.end) if mark}
    known = {id_: mark for mark, id_ in ids.items() if id_ is not None}  # of some tokenizers the unknown token's
    is_mark = {id_: mark for id_, mark in known.items() if tokenizer.convert_ids_to_tokens(id_) == mark}
    return {id_: mark for id_, mark in is_mark.items() if decode(tokenizer, [id_]) == ""}
