"""Answers in the harmony format of gpt-oss: reasoning, tool calls and text in channels.

An answer is a sequence of messages, `<|start|>assistant<|channel|>NAME<|message|>...` up to `<|end|>`, `<|call|>` or
`<|return|>`; the prompt ends with the first `<|start|>assistant`. Messages in the channel `analysis` are reasoning,
messages with `to=functions.NAME` before `<|message|>` are calls, and all others, also without a header, are text.
"""

import re
from collections.abc import Generator, Iterator
from typing import Any

from eagle_jax.chat.call_parser import Functions, object_of
from eagle_jax.chat.reasoning import PieceReader, ReasoningPiece
from eagle_jax.chat.tool_formats import ToolCall

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
STOPS = ENDS[1:]  # end an answer
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
# Texts around reasoning and around an answer, after a prompt that ends with `<|start|>assistant`.
ANALYSIS = (f"{CHANNEL}analysis{MESSAGE}", f"{ENDS[0]}{START}assistant")
FINAL = (f"{CHANNEL}final{MESSAGE}", "")
MAX_MARK_LENGTH = max(map(len, MARKS))  # characters
ROLE, TO = "assistant", "to="
_END = re.compile("|".join(map(re.escape, (*ENDS, START))))
_HEADER_END = re.compile(f"{re.escape(MESSAGE)}|{_END.pattern}")
_PLAIN_END = re.compile(f"{re.escape(CHANNEL)}|{_HEADER_END.pattern}")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")
_HEADER_FIELDS = re.compile(rf"(?:{re.escape(CHANNEL)}|{re.escape(CONSTRAIN)})\s*\w*")
_CUT_RECIPIENT = re.compile(r"\s*to=\S*\s*")


class HarmonyReader(PieceReader):
    """Splits an answer in channels.

    Args:
        functions: functions that may be called; calls of other functions are text.
        parallel: whether to return more calls than the first; otherwise they are dropped.
        before: the end of the prompt from its last `<|start|>`.
        separate: whether reasoning is separated from the text.
    """

    def __init__(
        self,
        functions: Functions,
        parallel: bool = True,
        before: str = f"{START}{ROLE}",
        separate: bool = True,
    ):
        super().__init__()
        self._functions, self._parallel = functions, parallel
        self._reasoning = ReasoningPiece if separate else str
        self._num_calls = 0
        self._seen_kinds: set[type] = set()  # kinds of earlier pieces
        self._mark = START  # the last mark read; "" at the end of the answer
        self._text = before.removeprefix(START)
        self.add("")

    def _read(self) -> Iterator[Any]:
        while self._mark:
            if (yield from self._has_no_header()):
                yield from self._message(str, _PLAIN_END)
                continue
            is_named = self._mark == START
            header = yield from self._until(_HEADER_END)
            channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
            is_reasoning = recipient is None and channel is not None and channel.group(1) == "analysis"
            kind = self._reasoning if is_reasoning else str
            if self._mark != MESSAGE:
                yield from self._pieces(kind, _text_of(header, is_named))
            elif recipient is not None:
                yield from self._call(recipient.group(1))
            else:
                yield from self._message(kind, _END)

    def _has_no_header(self) -> Generator[None, None, bool]:
        """Returns whether the next message has no header, by its first characters; drops the role if so."""
        role = ROLE if self._mark == START else ""
        while True:
            if self._text.startswith(role):
                text = self._text[len(role) :].lstrip()
                if any(text.startswith(mark) for mark in (*MARKS, TO)):
                    return False
                if not any(mark.startswith(text) for mark in (*MARKS, TO)):
                    self._text = self._text[len(role) :]
                    return True
            elif not role.startswith(self._text):  # another role
                return False
            if self._is_last:
                return False
            yield

    def _until(self, marks: re.Pattern[str]) -> Generator[None, None, str]:
        """Reads up to one of the marks, stores the mark, and returns the text before it."""
        searched = 0
        while (end := marks.search(self._text, searched)) is None and not self._is_last:
            searched = max(len(self._text) - MAX_MARK_LENGTH, 0)
            yield
        text = self._text if end is None else self._text[: end.start()]
        self._mark = "" if end is None else end.group()
        self._text = self._text[len(text) + len(self._mark) :]
        return text

    def _message(self, kind: Any, marks: re.Pattern[str]) -> Iterator[Any]:
        self.is_thinking, is_first = kind is ReasoningPiece, True
        while True:
            end = marks.search(self._text)
            complete = self._text if self._is_last else _before_mark(self._text)
            complete = complete if end is None else self._text[: end.start()]
            self._text = self._text[len(complete) :]
            for piece in self._pieces(kind, complete, is_first):
                yield piece
                is_first = False
            if end is not None or self._is_last:
                break
            yield None
        self._mark = "" if end is None else end.group()
        if self._mark not in (CHANNEL, MESSAGE):  # these belong to the next header
            self._text = self._text.removeprefix(self._mark)
        self.is_thinking = False

    def _call(self, name: str) -> Iterator[Any]:
        text = yield from self._until(_END)
        if name not in self._functions or object_of(text) is None:
            yield from self._pieces(str, f"{TO}functions.{name} {text}")
        elif self._parallel or not self._num_calls:
            self._num_calls += 1
            yield ToolCall(name, text.strip())

    def _pieces(self, kind: Any, text: str, is_first: bool = True) -> Iterator[Any]:
        """Yields a nonempty piece, with a blank line between two messages of one kind."""
        if text:
            yield kind("\n\n" * (is_first and kind in self._seen_kinds) + text)
            self._seen_kinds.add(kind)


def _text_of(header: str, is_named: bool) -> str:
    """Returns the text in a header without a message, with the header's own fields removed."""
    if is_named and ROLE.startswith(header):
        return ""
    text = _HEADER_FIELDS.sub("", header.removeprefix(ROLE) if is_named else header).strip()
    return "" if _CUT_RECIPIENT.fullmatch(text) else text


def _before_mark(text: str) -> str:
    """Returns the text up to the first character that may begin a mark."""
    start = text.rfind("<")
    return text[:start] if start >= 0 and any(mark.startswith(text[start:]) for mark in MARKS) else text
