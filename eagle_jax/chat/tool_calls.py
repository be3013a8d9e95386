"""Calls of functions in answers, read as the text comes."""

import re

from eagle_jax.chat.call_parser import CallParser, Functions
from eagle_jax.chat.tool_formats import ToolCall, ToolFormat
from eagle_jax.text.detokenize import settled

SPACE, AFTER_CALL = re.compile(r"[ \n\t]*"), re.compile(r"[; \n\t]*")


class CallReader:
    """Reads an answer as it comes: what is text, and what is a call.

    Text that may turn out to begin a call is held back, a call until it is complete. What looks like a call but is not
    one (broken JSON, a function that was not offered) is text. White space before a call, and after the last one, is
    dropped.

    Args:
        format: how the model writes calls.
        functions: the schemas of their parameters, by name.
        parallel: whether more calls than the first count; else they are dropped.

    Attributes:
        calls: that were read so far.
    """

    def __init__(self, format: ToolFormat, functions: Functions, parallel: bool = True):
        self._format, self._functions, self._parallel = format, functions, parallel
        before, self._section_end = (text.strip() for text in format.section)
        head = format.head.partition("{name}")[0].strip()
        bare = head if head.startswith("<") else ""  # a tag, which some models write alone
        self._marks = [mark for mark in (before, self._section_end, format.begin.strip(), format.also, bare) if mark]
        self.calls: list[ToolCall] = []
        self._text, self._space = "", ""  # text that is not returned yet, and white space before it
        self._only_calls = True  # so far: where a call may stand bare
        self._separators = 0  # characters that stand before a bare call, as far as they were read
        self._begun: CallParser | None = None  # of the call that the text begins with
        self._min_read = 1  # characters of the text that it reads at least

    def add(self, text: str) -> list[str | ToolCall]:
        """Reads more of the text and returns the pieces that are now certain."""
        self._text += text
        return self._pieces(is_last=False)

    def end(self) -> list[str | ToolCall]:
        """Returns the remaining pieces once the answer is complete."""
        if self.calls and any(
            mark.strip().startswith(self._text.strip()) for mark in (self._format.end, self._section_end)
        ):
            self._text = ""  # the mark after a call, cut short
        pieces = self._pieces(is_last=True)
        return pieces if self.calls or not self._space else [*pieces, self._space]

    def _pieces(self, is_last: bool) -> list[str | ToolCall]:
        pieces: list[str | ToolCall] = []
        while self._text:
            if self._begun is None:
                if not self._up_to_call(pieces, is_last):
                    break
                continue
            if not self._begun.read(self._text, is_last):
                break
            size, calls, self._begun = max(self._begun.at, self._min_read), self._begun.calls, None
            pieces += self._keep_calls(calls) if calls else self._text_pieces(self._text[:size])
            self._take(size)
        return pieces

    def _up_to_call(self, pieces: list[str | ToolCall], is_last: bool) -> bool:
        """Takes the text before a possible call, as far as it is certain; returns whether there is more to read."""
        bare = self._bare()
        if bare == len(self._text) and not is_last:
            return False
        places = {mark: place for mark in self._marks if (place := self._text.find(mark)) >= 0}
        mark = min(places, key=places.__getitem__, default="")
        begin = places.get(mark, -1)
        if bare is not None and self._text[bare : bare + 1] == "{":
            begin, mark = bare, ""
        if begin < 0:
            certain = self._text if is_last else settled(self._text, self._marks)
            pieces += self._text_pieces(certain)
            self._take(len(certain))
            return False
        pieces += [] if begin == bare and self.calls else self._text_pieces(self._text[:begin])
        self._take(begin)
        if mark and mark == self._section_end and self.calls:
            self._take(len(mark))
            self._space = ""
            return True
        self._begun, self._min_read = CallParser(self._format, self._functions), len(mark) or 1
        return True

    def _bare(self) -> int | None:
        """Returns where a call may stand bare, after white space or a separator; None if nowhere."""
        if not self._format.bare or not self._only_calls:
            return None
        separator = AFTER_CALL if self.calls else SPACE
        self._separators = separator.match(self._text, self._separators).end()  # type: ignore[union-attr]
        return self._separators

    def _take(self, size: int) -> None:
        self._text, self._separators = self._text[size:], 0

    def _keep_calls(self, calls: list[ToolCall]) -> list[str | ToolCall]:
        new_calls = calls if self._parallel else calls[: 1 - len(self.calls)]
        self.calls += new_calls
        self._space = ""
        return [*new_calls]

    def _text_pieces(self, text: str) -> list[str | ToolCall]:
        """Returns text without the white space at its end, which is kept until more text follows."""
        text = self._space + text
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        self._only_calls = self._only_calls and not stripped
        return [stripped] if stripped else []
