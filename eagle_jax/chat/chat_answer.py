"""One answer of a conversation in OpenAI's format: reasoning, text and tool calls."""

from collections.abc import Iterator, Sequence
from typing import Any

from eagle_jax.chat.harmony import MARKS, START, HarmonyReader
from eagle_jax.chat.mark_restorer import MarkRestorer
from eagle_jax.chat.reasoning import (
    PieceReader,
    ReasoningFormat,
    ReasoningPiece,
    ReasoningReader,
    ends_inside_reasoning,
)
from eagle_jax.chat.tool_calls import CallReader
from eagle_jax.chat.tool_formats import ToolCall, ToolFormat, call_id
from eagle_jax.chat.tools import Tools


class ChatAnswer:
    """Parses one answer piece by piece into reasoning, text and tool calls.

    Args:
        tokenizer: the model's tokenizer.
        id: id of the answer, from which the ids of calls are derived.
        prompt: tokens of the prompt.
        reasoning: format of the model's reasoning; None leaves it in the text.
        separate: whether reasoning is separated from the text; otherwise only the marks of channels are removed.
        tools: tools that may be called, with the format of the model's calls; None without tools.

    Attributes:
        calls: the calls so far, in OpenAI's format.
        reasoning_tokens: number of reasoning tokens so far.
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
        in_channels = any(format_ is not None and format_.channels for format_ in (reasoning, self._format))
        separate = separate and reasoning is not None
        texts = [text for format_ in (reasoning, self._format) if format_ is not None for text in format_.texts]
        self._marks = MarkRestorer(tokenizer, [*texts, *(MARKS if in_channels else ())], by_token=reasoning is not None)
        functions, parallel = ({}, True) if tools is None else (tools[0].functions, tools[0].parallel)
        self._piece_reader: PieceReader | None = None
        if in_channels:
            self._piece_reader = HarmonyReader(functions, parallel, _begun_message(tokenizer, prompt), separate)
        elif separate and reasoning is not None:
            self._piece_reader = ReasoningReader(reasoning, ends_inside_reasoning(reasoning, tokenizer, prompt))
        has_calls = self._format is not None and not self._format.channels
        self._call_reader = (
            CallReader(self._format, functions, parallel) if self._format is not None and has_calls else None
        )
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self.calls: list[dict[str, Any]] = []
        self.reasoning_tokens = 0

    def add(self, token_ids: Sequence[int], new: str, is_last: bool) -> list[dict[str, Any]]:
        """Returns the message deltas for further tokens, whose text is `new`."""
        pieces: list[str | ReasoningPiece | ToolCall] = []
        for index, text in enumerate(self._marks.pieces(token_ids, new)):
            was_thinking = self.is_thinking
            pieces += self._split(text)
            self.reasoning_tokens += (was_thinking or self.is_thinking) and index < len(token_ids)
        if is_last:
            pieces += self._last_pieces()
        return [delta for piece in _merge_pieces(pieces) for delta in self._deltas(piece)]

    def finish_reason(self, reason: str) -> str:
        """Returns OpenAI's finish reason: "tool_calls" if the answer has calls and ended by itself."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    @property
    def is_thinking(self) -> bool:
        """Whether the next text is reasoning, as far as is known."""
        return self._piece_reader is not None and self._piece_reader.is_thinking

    @property
    def content(self) -> str:
        """The text so far, without reasoning and calls."""
        return "".join(self._texts["content"])

    @property
    def reasoning_content(self) -> str:
        """The reasoning so far."""
        return "".join(self._texts["reasoning_content"])

    @property
    def message(self) -> dict[str, Any]:
        """The complete message."""
        message = {"role": "assistant", "content": self.content or (None if self.calls else ""), "refusal": None}
        message |= {"reasoning_content": self.reasoning_content} if self.reasoning_content else {}
        return message | ({"tool_calls": self.calls} if self.calls else {})

    def _split(self, text: str) -> Iterator[str | ReasoningPiece | ToolCall]:
        yield from self._read(
            self._piece_reader.add(text) if self._piece_reader is not None else [text] if text else []
        )

    def _last_pieces(self) -> Iterator[str | ReasoningPiece | ToolCall]:
        yield from self._read(self._piece_reader.end() if self._piece_reader is not None else [])
        yield from self._call_reader.end() if self._call_reader is not None else []

    def _read(self, pieces: Sequence[str | ReasoningPiece | ToolCall]) -> Iterator[str | ReasoningPiece | ToolCall]:
        for piece in pieces:
            if isinstance(piece, str) and self._call_reader is not None:
                yield from self._call_reader.add(piece)
            else:
                yield piece

    def _deltas(self, piece: str | ReasoningPiece | ToolCall) -> list[dict[str, Any]]:
        if not isinstance(piece, ToolCall):
            name, text = ("content", piece) if isinstance(piece, str) else ("reasoning_content", piece.text)
            self._texts[name].append(text)
            return [{name: text}]
        assert self._format is not None
        index, function = len(self.calls), {"name": piece.name, "arguments": piece.arguments}
        call = {"id": call_id(self._format, self._id, index), "type": "function", "function": function}
        self.calls.append(call)
        call_start = {"index": index} | call | {"function": function | {"arguments": ""}}
        return [
            {"tool_calls": [call_start]},
            {"tool_calls": [{"index": index, "function": {"arguments": piece.arguments}}]},
        ]


def _begun_message(tokenizer: Any, prompt: Sequence[int]) -> str:
    """Returns the part of the answer's message that the prompt already has."""
    start = tokenizer.convert_tokens_to_ids(START)
    first = next((index for index in reversed(range(len(prompt))) if prompt[index] == start), len(prompt))
    return tokenizer.decode([*prompt[first:]], skip_special_tokens=False) or f"{START}assistant"


def _merge_pieces(pieces: Sequence[str | ReasoningPiece | ToolCall]) -> list[str | ReasoningPiece | ToolCall]:
    """Merges consecutive pieces of text, and of reasoning."""
    merged: list[str | ReasoningPiece | ToolCall] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, str) and isinstance(last, str):
            merged[-1] = last + piece
        elif isinstance(piece, ReasoningPiece) and isinstance(last, ReasoningPiece):
            merged[-1] = ReasoningPiece(last.text + piece.text)
        else:
            merged.append(piece)
    return merged
