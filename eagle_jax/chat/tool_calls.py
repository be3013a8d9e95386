"""Splits a growing answer into text and tool calls."""

import re

from eagle_jax.chat.call_parser import CallParser, Functions
from eagle_jax.chat.tool_formats import ToolCall, ToolFormat
from eagle_jax.text.detokenize import settled

SPACE, AFTER_CALL = re.compile(r"[ \n\t]*"), re.compile(r"[; \n\t]*")


class CallReader:
    """Splits an answer into text and tool calls.

    Text that may begin a call is held back, and a call until it is complete. Invalid calls (broken JSON, an unknown
    function) are text. White space before a call, and after the last one, is dropped.

    Args:
        format: format of the model's calls.
        functions: parameter schemas by function name.
        parallel: whether to return more calls than the first; otherwise they are dropped.

    Attributes:
        calls: the calls so far.
    """

    def __init__(self, format: ToolFormat, functions: Functions, parallel: bool = True):
        self._format, self._functions, self._parallel = format, functions, parallel
        before, self._section_end = (text.strip() for text in format.section)
        head = format.head.partition("{name}")[0].strip()
        bare = head if head.startswith("<") else ""  # some models write this tag without `begin`
        self._marks = [mark for mark in (before, self._section_end, format.begin.strip(), format.also, bare) if mark]
        self.calls: list[ToolCall] = []
        self._text, self._trailing_space = "", ""  # text that is not returned yet, and the white space before it
        self._no_text_so_far = True  # only then may a call omit `begin`
        self._separator_end = 0  # characters of white space and separators at the beginning of `_text`
        self._parser: CallParser | None = None  # parser of a possible call at the beginning of `_text`
        self._min_read = 1  # minimum number of characters that the parser consumes

    def add(self, text: str) -> list[str | ToolCall]:
        """Reads more text and returns the complete pieces."""
        self._text += text
        return self._pieces(is_last=False)

    def end(self) -> list[str | ToolCall]:
        """Returns the remaining pieces once the answer is complete."""
        if self.calls and any(
            mark.strip().startswith(self._text.strip()) for mark in (self._format.end, self._section_end)
        ):
            self._text = ""  # a truncated mark after a call
        pieces = self._pieces(is_last=True)
        return pieces if self.calls or not self._trailing_space else [*pieces, self._trailing_space]

    def _pieces(self, is_last: bool) -> list[str | ToolCall]:
        pieces: list[str | ToolCall] = []
        while self._text:
            if self._parser is None:
                if not self._read_text(pieces, is_last):
                    break
                continue
            if not self._parser.read(self._text, is_last):
                break
            size, calls, self._parser = max(self._parser.position, self._min_read), self._parser.calls, None
            pieces += self._store_calls(calls) if calls else self._text_pieces(self._text[:size])
            self._take(size)
        return pieces

    def _read_text(self, pieces: list[str | ToolCall], is_last: bool) -> bool:
        """Reads the text before a possible call; returns whether to continue."""
        bare_start = self._bare_call_start()
        if bare_start == len(self._text) and not is_last:
            return False
        positions = {mark: position for mark in self._marks if (position := self._text.find(mark)) >= 0}
        mark = min(positions, key=positions.__getitem__, default="")
        start = positions.get(mark, -1)
        if bare_start is not None and self._text[bare_start : bare_start + 1] == "{":
            start, mark = bare_start, ""
        if start < 0:
            certain = self._text if is_last else settled(self._text, self._marks)
            pieces += self._text_pieces(certain)
            self._take(len(certain))
            return False
        pieces += [] if start == bare_start and self.calls else self._text_pieces(self._text[:start])
        self._take(start)
        if mark and mark == self._section_end and self.calls:
            self._take(len(mark))
            self._trailing_space = ""
            return True
        self._parser, self._min_read = CallParser(self._format, self._functions), len(mark) or 1
        return True

    def _bare_call_start(self) -> int | None:
        """Returns the position where a call without `begin` may start; None if there cannot be one."""
        if not self._format.bare or not self._no_text_so_far:
            return None
        separator = AFTER_CALL if self.calls else SPACE
        self._separator_end = separator.match(self._text, self._separator_end).end()  # type: ignore[union-attr]
        return self._separator_end

    def _take(self, size: int) -> None:
        self._text, self._separator_end = self._text[size:], 0

    def _store_calls(self, calls: list[ToolCall]) -> list[str | ToolCall]:
        new_calls = calls if self._parallel else calls[: 1 - len(self.calls)]
        self.calls += new_calls
        self._trailing_space = ""
        return [*new_calls]

    def _text_pieces(self, text: str) -> list[str | ToolCall]:
        """Returns text without trailing white space, which is held back until more text follows."""
        text = self._trailing_space + text
        stripped = text.rstrip()
        self._trailing_space = text[len(stripped) :]
        self._no_text_so_far = self._no_text_so_far and not stripped
        return [stripped] if stripped else []
