"""One call of a function, or a list of them, read from a text that grows."""

import json
import re
from collections.abc import Generator, Mapping
from typing import Any

from eagle_jax.chat.json_end import JsonEnd
from eagle_jax.chat.strict_json import loads
from eagle_jax.chat.tool_formats import ToolCall, ToolFormat

Functions = Mapping[str, Mapping[str, Any]]  # schemas of parameters, by the functions' names
More = Generator[None, None, None]  # waits for more of the text

NAME = re.compile(r"[A-Za-z0-9_.-]{0,64}")
DIGITS = re.compile(r"[0-9]{0,9}")
DEEPEST = 16  # nested schemas that are read for a value's type
TYPES = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


class _NoCall(Exception):
    """What is read is not a call."""


class CallParser:
    """Reads what a text begins with, from left to right and nothing twice, until it is a call or can be none.

    Args:
        format: how the model writes calls.
        functions: that may be called.

    Attributes:
        at: characters that are read.
        calls: the calls, once they are complete; empty if it is not a call.
    """

    def __init__(self, format: ToolFormat, functions: Functions):
        self._format, self._functions = format, functions
        self._text, self._is_last = "", False
        self._reading = self._read()
        self.at = 0
        self.calls: list[ToolCall] = []

    def read(self, text: str, is_last: bool) -> bool:
        """Reads on in a text that begins with what was given before; returns whether it is over.

        Args:
            is_last: nothing more follows.
        """
        self._text, self._is_last = text, is_last
        try:
            next(self._reading)
            return False
        except StopIteration:
            return True
        except _NoCall:
            self.calls = []
            return True

    def _read(self) -> More:
        format, begin, section = self._format, self._format.begin.strip(), self._format.section[0].strip()
        begin = format.also if format.also and self._text.startswith(format.also) else begin
        if section and self._text.startswith(section):
            self.at = len(section)
            yield from self._literal(begin)
        elif self._text.startswith(begin):
            self.at = len(begin)
        yield from (self._named() if format.head else self._objects())
        after = (format.tail, format.end) if format.argument is None else (format.end,) if format.tail else ()
        for text in filter(None, after):
            yield from self._optional(text)

    def _objects(self) -> More:
        text = yield from self._json("{[")
        try:
            value = loads(text)
        except ValueError:
            raise _NoCall from None
        self.calls = [self._call_of(entry) for entry in (value if isinstance(value, list) else [value])]

    def _named(self) -> More:
        before, _, after = self._format.head.partition("{name}")
        yield from self._literal(before)
        name = yield from self._word(NAME)
        if name not in self._functions:
            raise _NoCall
        if after.startswith(":{index}"):
            yield from self._literal(":")
            yield from self._word(DIGITS)
            after = after.removeprefix(":{index}")
        yield from self._literal(after)
        if self._format.argument is None:
            arguments = _object((yield from self._json("{")))
        else:
            arguments = yield from self._tagged(*self._format.argument, self._functions[name])
        self.calls = [ToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))]

    def _tagged(self, begin: str, end: str, schema: Mapping[str, Any]) -> Generator[None, None, dict[str, Any]]:
        """Reads arguments whose values are not JSON, up to the text that has to follow them; returns them."""
        before, _, after = begin.partition("{key}")
        last = (self._format.tail or self._format.end).strip()
        arguments: dict[str, Any] = {}
        while not (yield from self._either(before.strip(), last)):
            key = yield from self._until(after.split("\n")[0].strip())
            if inner := after.partition("\n")[2]:
                yield from self._literal(inner)
            value = yield from self._until(end.strip())
            value = value.removeprefix("\n") if begin.endswith("\n") else value
            value = value.removesuffix("\n") if end.startswith("\n") else value
            arguments[key.strip()] = _typed(value, key.strip(), schema)
        return arguments

    def _call_of(self, entry: Any) -> ToolCall:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _NoCall
        if entry["name"] not in self._functions:
            raise _NoCall
        arguments = entry.get(self._format.arguments, entry.get("arguments"))
        if isinstance(arguments, str):  # some write the object as text once more
            arguments = _object(arguments)
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise _NoCall
        return ToolCall(entry["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False))

    def _more(self) -> More:
        if self._is_last:
            self.at = len(self._text)
            raise _NoCall
        yield

    def _space(self) -> More:
        """Reads white space up to something else."""
        while True:
            self.at = skip_space(self._text, self.at)
            if self.at < len(self._text):
                return
            yield from self._more()

    def _literal(self, text: str) -> More:
        if not (text := text.strip()):
            return
        yield from self._space()
        if not (yield from self._matches(text, self.at)):
            raise _NoCall
        self.at += len(text)

    def _either(self, text: str, last: str) -> Generator[None, None, bool]:
        """Reads one of two texts; returns whether it is the last."""
        yield from self._space()
        is_last = not (yield from self._matches(text, self.at))
        if is_last and not (yield from self._matches(last, self.at)):
            raise _NoCall
        self.at += len(last if is_last else text)
        return is_last

    def _optional(self, text: str) -> More:
        """Reads a text if it is there; that of a call which is complete may be cut short."""
        text, at = text.strip(), skip_space(self._text, self.at)
        while at == len(self._text) and not self._is_last:
            yield
            at = skip_space(self._text, at)
        while text.startswith(self._text[at : at + len(text)]) and not self._text.startswith(text, at):
            if self._is_last:
                return
            yield
        if self._text.startswith(text, at):
            self.at = at + len(text)

    def _matches(self, text: str, at: int) -> Generator[None, None, bool]:
        """Waits until it is certain whether a text stands there, and returns that."""
        while not self._text.startswith(text, at):
            if not text.startswith(self._text[at : at + len(text)]):
                return False
            yield from self._more()
        return True

    def _word(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        yield from self._space()
        while (match := pattern.match(self._text, self.at)) and match.end() == len(self._text):
            yield from self._more()
        word = match.group() if match else ""
        self.at += len(word)
        return word

    def _until(self, mark: str) -> Generator[None, None, str]:
        begin = searched = self.at
        while (end := self._text.find(mark, searched)) < 0:
            searched = max(begin, len(self._text) - len(mark) + 1)
            yield from self._more()
        self.at = end + len(mark)
        return self._text[begin:end]

    def _json(self, begins: str) -> Generator[None, None, str]:
        """Reads a JSON object, or a list if that is allowed; returns it."""
        yield from self._space()
        if self._text[self.at] not in begins:
            raise _NoCall
        begin, end = self.at, JsonEnd(self.at)
        while (stop := end.read(self._text)) is None:
            yield from self._more()
        self.at = stop
        return self._text[begin:stop]


def skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def object_of(text: str) -> dict[str, Any] | None:
    """Returns the JSON object of a text; None if it is not one."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _object(text: str) -> dict[str, Any]:
    value = object_of(text)
    if value is None:
        raise _NoCall
    return value


def _typed(text: str, key: str, schema: Mapping[str, Any]) -> Any:
    """Returns the value of an argument written without quotes: what its schema says, else JSON if it is JSON.

    A text that no allowed type fits is left as it is.
    """
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
    """Returns the types that a schema names for a value; empty if it names none, all if it is nested too deeply."""
    if not isinstance(schema, Mapping):
        return set()
    if depth > DEEPEST:
        return {*TYPES.values(), "string"}
    stated, values = schema.get("type"), schema.get("enum")
    named = {one for one in (stated if isinstance(stated, list) else [stated]) if isinstance(one, str)}
    values = [*(values if isinstance(values, list) else ()), *([schema["const"]] if "const" in schema else ())]
    named |= {TYPES.get(type(value), "string") for value in values}
    for name in ("anyOf", "oneOf", "allOf"):
        inner = schema.get(name)
        named = named.union(*(_types(one, depth + 1) for one in (inner if isinstance(inner, list) else ())))
    return named
