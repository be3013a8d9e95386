"""One answer of a conversation in OpenAI's form: reasoning, text, and calls of functions."""

from collections.abc import Iterator, Sequence
from typing import Any

from eagle_jax.chat.harmony import MARKS, START, HarmonyReader
from eagle_jax.chat.reasoning import PieceReader, ReasoningFormat, ReasoningReader, Thought, is_open
from eagle_jax.chat.shown_marks import ShownMarks
from eagle_jax.chat.tool_calls import CallReader
from eagle_jax.chat.tool_formats import ToolCall, ToolFormat, call_id
from eagle_jax.chat.tools import Tools


class ChatAnswer:
    """One answer that may reason and call functions, read piece by piece.

    Args:
        tokenizer: the model's.
        id: of the answer; ids of calls follow from it.
        prompt: the tokens before the answer.
        reasoning: how the model marks its reasoning; None leaves it in the text.
        separate: whether reasoning is separated from the text; else it is left there, of channels without the marks.
        tools: functions that may be called, and how the model writes calls; None if there are none.

    Attributes:
        calls: the calls so far, in OpenAI's form.
        reasoning_tokens: tokens of the reasoning so far.
    """

    def __init__(
        self,
        tokenizer: Any,
        id: str,
        *,
        prompt: Sequence[int] = (),
        reasoning: ReasoningFormat | None = None,
        tools: tuple[Tools, ToolFormat] | None = None,
        separate: bool = True,
    ):
        self._id, self._format = id, None if tools is None else tools[1]
        in_channels = any(one is not None and one.channels for one in (reasoning, self._format))
        separate = separate and reasoning is not None
        texts = [text for one in (reasoning, self._format) if one is not None for text in one.texts]
        self._marks = ShownMarks(tokenizer, [*texts, *(MARKS if in_channels else ())], by_token=reasoning is not None)
        functions, parallel = ({}, True) if tools is None else (tools[0].functions, tools[0].parallel)
        self._splitter: PieceReader | None = None
        if in_channels:
            self._splitter = HarmonyReader(functions, parallel, _last_message(tokenizer, prompt), separate)
        elif separate and reasoning is not None:
            self._splitter = ReasoningReader(reasoning, is_open(reasoning, tokenizer, prompt))
        calls = self._format is not None and not self._format.channels
        self._calls = CallReader(self._format, functions, parallel) if self._format is not None and calls else None
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self.calls: list[dict[str, Any]] = []
        self.reasoning_tokens = 0

    def add(self, token_ids: Sequence[int], new: str, is_last: bool) -> list[dict[str, Any]]:
        """Returns the deltas of a message, for more tokens, whose own text is `new`."""
        pieces: list[str | Thought | ToolCall] = []
        for number, text in enumerate(self._marks.pieces(token_ids, new)):
            was_thinking = self.is_thinking
            pieces += self._split(text)
            self.reasoning_tokens += (was_thinking or self.is_thinking) and number < len(token_ids)
        if is_last:
            pieces += self._ended()
        return [delta for piece in _joined(pieces) for delta in self._deltas(piece)]

    def finish_reason(self, reason: str) -> str:
        """Returns OpenAI's word for an answer that ends in calls."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._splitter is not None and self._splitter.is_thinking

    @property
    def content(self) -> str:
        """The text of the answer so far, without reasoning and calls."""
        return "".join(self._texts["content"])

    @property
    def reasoning_content(self) -> str:
        """The reasoning so far."""
        return "".join(self._texts["reasoning_content"])

    @property
    def message(self) -> dict[str, Any]:
        """The complete answer."""
        message = {"role": "assistant", "content": self.content or (None if self.calls else ""), "refusal": None}
        message |= {"reasoning_content": self.reasoning_content} if self.reasoning_content else {}
        return message | ({"tool_calls": self.calls} if self.calls else {})

    def _split(self, text: str) -> Iterator[str | Thought | ToolCall]:
        yield from self._read(self._splitter.add(text) if self._splitter is not None else [text] if text else [])

    def _ended(self) -> Iterator[str | Thought | ToolCall]:
        yield from self._read(self._splitter.end() if self._splitter is not None else [])
        yield from self._calls.end() if self._calls is not None else []

    def _read(self, pieces: Sequence[str | Thought | ToolCall]) -> Iterator[str | Thought | ToolCall]:
        for piece in pieces:
            if isinstance(piece, str) and self._calls is not None:
                yield from self._calls.add(piece)
            else:
                yield piece

    def _deltas(self, piece: str | Thought | ToolCall) -> list[dict[str, Any]]:
        if not isinstance(piece, ToolCall):
            name, text = ("content", piece) if isinstance(piece, str) else ("reasoning_content", piece.text)
            self._texts[name].append(text)
            return [{name: text}]
        assert self._format is not None
        index, function = len(self.calls), {"name": piece.name, "arguments": piece.arguments}
        call = {"id": call_id(self._format, self._id, index), "type": "function", "function": function}
        self.calls.append(call)
        named = {"index": index} | call | {"function": function | {"arguments": ""}}
        return [
            {"tool_calls": [named]},
            {"tool_calls": [{"index": index, "function": {"arguments": piece.arguments}}]},
        ]


def _last_message(tokenizer: Any, prompt: Sequence[int]) -> str:
    """Returns the part of the answer's message that the prompt already has."""
    start = tokenizer.convert_tokens_to_ids(START)
    begin = next((place for place in reversed(range(len(prompt))) if prompt[place] == start), len(prompt))
    return tokenizer.decode([*prompt[begin:]], skip_special_tokens=False) or f"{START}assistant"


def _joined(pieces: Sequence[str | Thought | ToolCall]) -> list[str | Thought | ToolCall]:
    """Returns the pieces, with those of one kind that follow each other as one."""
    joined: list[str | Thought | ToolCall] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = last + piece
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            joined[-1] = Thought(last.text + piece.text)
        else:
            joined.append(piece)
    return joined
