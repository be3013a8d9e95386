"""Finds the end of a JSON object or list in a growing text."""

import re

DELIMITER = re.compile(r'["{}\[\]]')  # outside strings
STRING_REST = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)  # up to the end of a string or an incomplete escape


class JsonEndFinder:
    """Finds the end of the object or list that begins at `begin`, reading each character once.

    Attributes:
        end: position after the last character; None until it is found.
    """

    def __init__(self, begin: int):
        self.end: int | None = None
        self._position, self._depth, self._in_string = begin, 0, False

    def read(self, text: str) -> int | None:
        """Continues with a longer text; returns `end`."""
        while self.end is None and self._position < len(text):
            if self._in_string:
                self._leave_string(text)
                if self._in_string:
                    break
            elif (match := DELIMITER.search(text, self._position)) is None:
                self._position = len(text)
            else:
                self._position, self._in_string = match.end(), match.group() == '"'
                self._depth += {"{": 1, "[": 1, '"': 0}.get(match.group(), -1)
                if self._depth == 0 and not self._in_string:
                    self.end = self._position
        return self.end

    def _leave_string(self, text: str) -> None:
        match = STRING_REST.match(text, self._position)
        self._position = len(text) if match is None else match.end()
        if text[self._position : self._position + 1] == '"':
            self._position, self._in_string = self._position + 1, False
