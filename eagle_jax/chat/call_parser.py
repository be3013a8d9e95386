"""Incremental parser of one tool call, or a list of calls."""

import json
import re
from collections.abc import Generator, Mapping
from typing import Any

from eagle_jax.chat.json_end import JsonEndFinder
from eagle_jax.chat.strict_json import loads
from eagle_jax.chat.tool_formats import ToolCall, ToolFormat

Functions = Mapping[str, Mapping[str, Any]]  # parameter schemas by function name
Waiting = Generator[None, None, None]  # yields whenever it needs more text

NAME = re.compile(r"[A-Za-z0-9_.-]{0,64}")
DIGITS = re.compile(r"[0-9]{0,9}")
MAX_DEPTH = 16  # of nested schemas that are searched for a value's type
TYPES = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


class _NotACall(Exception):
    """The text is not a call."""


class CallParser:
    """Parses the beginning of a text, reading each character once, until it is a call or cannot become one.

    Args:
        format: format of the model's calls.
        functions: functions that may be called.

    Attributes:
        position: number of characters read.
        calls: the complete calls; empty if the text is not a call.
    """

    def __init__(self, format: ToolFormat, functions: Functions):
        self._format, self._functions = format, functions
        self._text, self._is_last = "", False
        self._reading = self._read()
        self.position = 0
        self.calls: list[ToolCall] = []

    def read(self, text: str, is_last: bool) -> bool:
        """Continues with a longer text; returns whether parsing has finished.

        Args:
            is_last: whether the text is complete.
        """
        self._text, self._is_last = text, is_last
        try:
            next(self._reading)
            return False
        except StopIteration:
            return True
        except _NotACall:
            self.calls = []
            return True

    def _read(self) -> Waiting:
        format, begin, section = self._format, self._format.begin.strip(), self._format.section[0].strip()
        begin = format.also if format.also and self._text.startswith(format.also) else begin
        if section and self._text.startswith(section):
            self.position = len(section)
            yield from self._literal(begin)
        elif self._text.startswith(begin):
            self.position = len(begin)
        yield from (self._call_with_head() if format.head else self._json_calls())
        closing = (format.tail, format.end) if format.argument is None else (format.end,) if format.tail else ()
        for text in filter(None, closing):
            yield from self._optional(text)

    def _json_calls(self) -> Waiting:
        text = yield from self._json("{[")
        try:
            value = loads(text)
        except ValueError:
            raise _NotACall from None
        self.calls = [self._call_of(entry) for entry in (value if isinstance(value, list) else [value])]

    def _call_with_head(self) -> Waiting:
        before, _, after = self._format.head.partition("{name}")
        yield from self._literal(before)
        name = yield from self._word(NAME)
        if name not in self._functions:
            raise _NotACall
        if after.startswith(":{index}"):
            yield from self._literal(":")
            yield from self._word(DIGITS)
            after = after.removeprefix(":{index}")
        yield from self._literal(after)
        if self._format.argument is None:
            arguments = _object((yield from self._json("{")))
        else:
            arguments = yield from self._tagged_arguments(*self._format.argument, self._functions[name])
        self.calls = [ToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))]

    def _tagged_arguments(
        self, begin: str, end: str, schema: Mapping[str, Any]
    ) -> Generator[None, None, dict[str, Any]]:
        """Parses arguments whose values are not JSON, up to the text that must follow them."""
        before, _, after = begin.partition("{key}")
        last = (self._format.tail or self._format.end).strip()
        arguments: dict[str, Any] = {}
        while not (yield from self._either(before.strip(), last)):
            key = yield from self._until(after.split("\n")[0].strip())
            if between := after.partition("\n")[2]:
                yield from self._literal(between)
            value = yield from self._until(end.strip())
            value = value.removeprefix("\n") if begin.endswith("\n") else value
            value = value.removesuffix("\n") if end.startswith("\n") else value
            arguments[key.strip()] = _parse_value(value, key.strip(), schema)
        return arguments

    def _call_of(self, entry: Any) -> ToolCall:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _NotACall
        if entry["name"] not in self._functions:
            raise _NotACall
        arguments = entry.get(self._format.arguments, entry.get("arguments"))
        if isinstance(arguments, str):  # some models write the object as a JSON string
            arguments = _object(arguments)
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise _NotACall
        return ToolCall(entry["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False))

    def _wait_for_text(self) -> Waiting:
        if self._is_last:
            self.position = len(self._text)
            raise _NotACall
        yield

    def _space(self) -> Waiting:
        """Skips white space."""
        while True:
            self.position = skip_space(self._text, self.position)
            if self.position < len(self._text):
                return
            yield from self._wait_for_text()

    def _literal(self, text: str) -> Waiting:
        if not (text := text.strip()):
            return
        yield from self._space()
        if not (yield from self._matches(text, self.position)):
            raise _NotACall
        self.position += len(text)

    def _either(self, text: str, last: str) -> Generator[None, None, bool]:
        """Reads one of two texts; returns whether it was `last`."""
        yield from self._space()
        is_last = not (yield from self._matches(text, self.position))
        if is_last and not (yield from self._matches(last, self.position)):
            raise _NotACall
        self.position += len(last if is_last else text)
        return is_last

    def _optional(self, text: str) -> Waiting:
        """Reads a text if it follows; after a complete call it may be truncated."""
        text, start = text.strip(), skip_space(self._text, self.position)
        while start == len(self._text) and not self._is_last:
            yield
            start = skip_space(self._text, start)
        while text.startswith(self._text[start : start + len(text)]) and not self._text.startswith(text, start):
            if self._is_last:
                return
            yield
        if self._text.startswith(text, start):
            self.position = start + len(text)

    def _matches(self, text: str, position: int) -> Generator[None, None, bool]:
        """Returns whether a text follows, once that is certain."""
        while not self._text.startswith(text, position):
            if not text.startswith(self._text[position : position + len(text)]):
                return False
            yield from self._wait_for_text()
        return True

    def _word(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        yield from self._space()
        while (match := pattern.match(self._text, self.position)) and match.end() == len(self._text):
            yield from self._wait_for_text()
        word = match.group() if match else ""
        self.position += len(word)
        return word

    def _until(self, mark: str) -> Generator[None, None, str]:
        start = searched = self.position
        while (end := self._text.find(mark, searched)) < 0:
            searched = max(start, len(self._text) - len(mark) + 1)
            yield from self._wait_for_text()
        self.position = end + len(mark)
        return self._text[start:end]

    def _json(self, begins: str) -> Generator[None, None, str]:
        """Reads a JSON value that starts with one of the characters in `begins`."""
        yield from self._space()
        if self._text[self.position] not in begins:
            raise _NotACall
        start, json_end = self.position, JsonEndFinder(self.position)
        while (end := json_end.read(self._text)) is None:
            yield from self._wait_for_text()
        self.position = end
        return self._text[start:end]


def skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def object_of(text: str) -> dict[str, Any] | None:
    """Parses a JSON object; returns None if the text is not one."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _object(text: str) -> dict[str, Any]:
    value = object_of(text)
    if value is None:
        raise _NotACall
    return value


def _parse_value(text: str, key: str, schema: Mapping[str, Any]) -> Any:
    """Parses the value of an argument written without quotes; it stays text if its schema allows no parsed type."""
    properties = schema.get("properties")
    allowed = _types(properties.get(key) if isinstance(properties, Mapping) else None)
    try:
        value = loads(text)
    except ValueError:
        value = {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
    kind = TYPES.get(type(value))
    kinds = {kind, "number"} if kind == "integer" else {kind}
    return value if kind is not None and (not allowed or kinds & allowed) else text


def _types(schema: Any, depth: int = 0) -> set[str]:
    """Returns the types that a schema names; empty if it names none, all types if it is nested too deeply."""
    if not isinstance(schema, Mapping):
        return set()
    if depth > MAX_DEPTH:
        return {*TYPES.values(), "string"}
    type_names, values = schema.get("type"), schema.get("enum")
    types = {name for name in (type_names if isinstance(type_names, list) else [type_names]) if isinstance(name, str)}
    values = [*(values if isinstance(values, list) else ()), *([schema["const"]] if "const" in schema else ())]
    types |= {TYPES.get(type(value), "string") for value in values}
    for name in ("anyOf", "oneOf", "allOf"):
        inner = schema.get(name)
        types = types.union(*(_types(part, depth + 1) for part in (inner if isinstance(inner, list) else ())))
    return types
