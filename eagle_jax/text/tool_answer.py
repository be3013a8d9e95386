"""One answer that may call functions, as OpenAI's responses tell it."""

from collections.abc import Sequence
from typing import Any

from eagle_jax.text.detokenize import IncrementalDetokenizer, decode
from eagle_jax.text.tool_calls import CallReader, ToolCall, ToolFormat, call_id
from eagle_jax.text.tools import Tools


class ToolAnswer:
    """One answer that may call functions, told piece by piece.

    Args:
        tokenizer: the model's.
        format: how the model writes calls.
        tools: those that there are.
        id: of the answer; ids of calls follow from it.
        prompt: the tokens before the answer.

    Attributes:
        calls: the calls so far, in OpenAI's form.
    """

    def __init__(self, tokenizer: Any, format: ToolFormat, tools: Tools, id: str):
        self._format, self._id = format, id
        self._reader = CallReader(format, tools.names, tools.parallel)
        self._marks = _hidden(tokenizer, format)
        before = tokenizer("a", add_special_tokens=False)["input_ids"]  # a chat that is answered has some text
        self._detokenizer = IncrementalDetokenizer(tokenizer, before)
        self._pending: list[tuple[int, str]] = []  # marks that were not shown, and where in the text they are
        self._length = 0  # of the text so far
        self._said: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def add(self, token_ids: Sequence[int], new: str, is_last: bool) -> list[dict[str, Any]]:
        """Deltas of a message, for more tokens, whose own text is `new`."""
        pieces = self._reader.add(self._marked(token_ids, new)) + (self._reader.end() if is_last else [])
        return [delta for piece in pieces for delta in self._deltas(piece)]

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word for an answer that ends in calls."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    @property
    def content(self) -> str:
        """The text of the answer so far, without calls."""
        return "".join(self._said)

    @property
    def message(self) -> dict[str, Any]:
        """The complete answer."""
        message = {"role": "assistant", "content": self.content or (None if self.calls else ""), "refusal": None}
        return message | ({"tool_calls": self.calls} if self.calls else {})

    def _deltas(self, piece: str | ToolCall) -> list[dict[str, Any]]:
        if isinstance(piece, str):
            self._said.append(piece)
            return [{"content": piece}]
        index, function = len(self.calls), {"name": piece.name, "arguments": piece.arguments}
        call = {"id": call_id(self._format, self._id, index), "type": "function", "function": function}
        self.calls.append(call)
        named = {"index": index} | call | {"function": function | {"arguments": ""}}
        return [
            {"tool_calls": [named]},
            {"tool_calls": [{"index": index, "function": {"arguments": piece.arguments}}]},
        ]

    def _marked(self, token_ids: Sequence[int], new: str) -> str:
        """The new text, with the marks of calls that are special tokens, which have no text of their own."""
        for id_ in token_ids if self._marks else ():
            if id_ in self._marks:
                self._pending.append((self._detokenizer.length, self._marks[id_]))
            self._detokenizer.add(id_)
        parts, begin = list[str](), self._length
        self._length += len(new)
        while self._pending and self._pending[0][0] <= self._length:
            place, mark = self._pending.pop(0)
            parts += [new[: place - begin], mark]
            new, begin = new[place - begin :], place
        return "".join([*parts, new])


def _hidden(tokenizer: Any, format: ToolFormat) -> dict[int, str]:
    """The marks of a format that are special tokens, by their ids."""
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in (format.begin, format.end) if mark}
    known = {id_: mark for mark, id_ in ids.items() if id_ is not None}  # of some tokenizers the unknown token's
    is_mark = {id_: mark for id_, mark in known.items() if tokenizer.convert_ids_to_tokens(id_) == mark}
    return {id_: mark for id_, mark in is_mark.items() if decode(tokenizer, [id_]) == ""}
