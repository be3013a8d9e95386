"""Answers in channels, as gpt-oss writes them: reasoning, calls of functions, and text.

An answer is one message after another, `<|start|>assistant<|channel|>NAME<|message|>...` up to `<|end|>`, `<|call|>` or
`<|return|>`; the prompt has the first `<|start|>assistant` already. Messages of the channel `analysis` are reasoning,
those with `to=functions.NAME` before `<|message|>` are calls, and all others are text.
"""

import re
from collections.abc import Iterator
from typing import Any

from eagle_jax.text.call_parser import Functions, object_of
from eagle_jax.text.reasoning import PieceReader, Thought
from eagle_jax.text.tool_formats import ToolCall

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
STOPS = ENDS[1:]  # end an answer
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
# Texts around reasoning and around an answer, after a prompt that has begun a message.
ANALYSIS = (f"{CHANNEL}analysis{MESSAGE}", f"{ENDS[0]}{START}assistant")
FINAL = (f"{CHANNEL}final{MESSAGE}", "")
_END = re.compile("|".join(map(re.escape, (*ENDS, START))))
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")


class HarmonyReader(PieceReader):
    """Splits an answer in channels.

    Args:
        functions: that may be called; calls of others are text.
        parallel: whether more calls than the first count; else they are dropped.
        before: the end of the prompt, from its last `<|start|>` on.
    """

    def __init__(self, functions: Functions, parallel: bool = True, before: str = f"{START}assistant"):
        super().__init__()
        self._functions, self._parallel = functions, parallel
        self._called = 0
        self._told: set[type] = set()  # kinds of pieces that earlier messages had
        self._text = before.removeprefix(START)
        self.add("")

    def _read(self) -> Iterator[Any]:
        while True:
            while (end := self._text.find(MESSAGE)) < 0:
                if self._is_last:
                    # no message at all: text of a model that was led astray, without the role that the prompt begins
                    rest = self._text.removeprefix("assistant")
                    yield from [rest] if rest and not any(mark in rest for mark in MARKS) else []
                    return
                yield None
            header, self._text = self._text[:end], self._text[end + len(MESSAGE) :]
            channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
            if recipient is not None and recipient.group(1) in self._functions:
                yield from self._call(recipient.group(1))
            else:
                is_reasoning = recipient is None and channel is not None and channel.group(1) == "analysis"
                yield from self._message(Thought if is_reasoning else str)
            self.is_thinking = False

    def _message(self, kind: Any) -> Iterator[Any]:
        self.is_thinking = kind is Thought
        first = "\n\n" if kind in self._told else ""
        while True:
            end = _END.search(self._text)
            certain = self._text if self._is_last else _before_mark(self._text)
            certain = certain if end is None else self._text[: end.start()]
            self._text = self._text[len(certain) :]
            if certain:
                self._told.add(kind)
                yield kind(first + certain)
                first = ""
            if end is not None:
                self._text = self._text.removeprefix(end.group() if end.group() != START else "")
                return
            if self._is_last:
                return
            yield None

    def _call(self, name: str) -> Iterator[Any]:
        while (end := _END.search(self._text)) is None and not self._is_last:
            yield None
        written = self._text if end is None else self._text[: end.start()]
        self._text = "" if end is None else self._text[end.end() if end.group() != START else end.start() :]
        if object_of(written) is None:
            yield from [written] if written else []
        elif self._parallel or not self._called:
            self._called += 1
            yield ToolCall(name, written.strip())


def _before_mark(text: str) -> str:
    """The text up to where one of the marks may begin."""
    begin = text.rfind("<")
    return text[:begin] if begin >= 0 and any(mark.startswith(text[begin:]) for mark in MARKS) else text
