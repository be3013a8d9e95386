"""Where a JSON object or list ends, in a text that comes piece by piece."""

import re

MARK = re.compile(r'["{}\[\]]')  # what matters outside of strings
WITHIN = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)  # of a string, up to its end or a backslash that is the last


class JsonEnd:
    """Looks for the end of the object or list that begins at `begin`; what was read once is not read again.

    Attributes:
        end: where it ends; None as long as the text ends before.
    """

    def __init__(self, begin: int):
        self.end: int | None = None
        self._place, self._depth, self._in_string = begin, 0, False

    def read(self, text: str) -> int | None:
        """Returns the end in a text that begins with those that were read before."""
        while self.end is None and self._place < len(text):
            if self._in_string:
                self._leave_string(text)
                if self._in_string:
                    break
            elif (match := MARK.search(text, self._place)) is None:
                self._place = len(text)
            else:
                self._place, self._in_string = match.end(), match.group() == '"'
                self._depth += {"{": 1, "[": 1, '"': 0}.get(match.group(), -1)
                if self._depth == 0 and not self._in_string:
                    self.end = self._place
        return self.end

    def _leave_string(self, text: str) -> None:
        within = WITHIN.match(text, self._place)
        self._place = len(text) if within is None else within.end()
        if text[self._place : self._place + 1] == '"':
            self._place, self._in_string = self._place + 1, False
