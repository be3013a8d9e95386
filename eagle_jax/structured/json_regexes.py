"""Regular expressions of JSON strings and numbers, and of the formats and patterns of schemas."""

import dataclasses
import re

CHARACTER = r'([^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
STRING = f'"{CHARACTER}*"'
INTEGER = r"-?(0|[1-9][0-9]*)"
NUMBER = rf"{INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]{{1,2}})?"

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_DATE = (
    "[1-9][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"  # no 29 Feb
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{3})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
_LABELS = "[a-z0-9]+([.-][a-z0-9]+)*"  # of any length: few states, so that the length can be counted too
_SERVER, _PATH = rf"https?://{_LABELS}(:[1-9][0-9]{{0,3}})?", "(/[A-Za-z0-9._~+-]*)*"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?)?|T[0-9]{1,4}[HMS])",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_LABEL}(\.{_LABEL})*\.[a-z]{{2,10}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,5}}",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uri": f"{_SERVER}{_PATH}",
    "uri-reference": f"({_SERVER})?{_PATH}",
    "json-pointer": "(/[A-Za-z0-9_.-]*)*",
    "relative-json-pointer": "(0|[1-9][0-9]{0,3})(/[A-Za-z0-9_.-]*)*",
}

FORMATS |= {f"iri{kind}": FORMATS[f"uri{kind}"] for kind in ("", "-reference")}
FORMATS |= {"uri-template": FORMATS["uri"]} | {f"idn-{kind}": FORMATS[kind] for kind in ("email", "hostname")}

_SAFE = r'[^"\\\x00-\x1F\x7F-\x9F]'  # characters that need no escape in a JSON string
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " "}  # ECMA-262's classes, restricted to such characters


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One alternative of a pattern, as regular expressions of JSON strings.

    Attributes:
        regex: the expression that a string matches.
        conditions: look-ahead at the beginning: further expressions, each with whether a string must match it (True)
            or must not (False).
    """

    regex: str
    conditions: tuple[tuple[str, bool], ...] = ()


def escape_regex(text: str) -> str:
    """Returns a regular expression that matches exactly this text."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", text)


def alternatives(pattern: str) -> list[Alternative]:
    """Returns the alternatives of a schema's `pattern` (ECMA-262), which match JSON strings without escapes.

    Raises:
        ValueError: no finite automaton expresses the pattern, or it matches characters that JSON escapes.
    """
    return [_alternative(alternative) for alternative in _split(pattern)]


def _split(pattern: str) -> list[str]:
    """Splits a pattern at each `|` outside of groups."""
    parts, start, position = [], 0, 0
    while position < len(pattern):
        if pattern[position] == "|":
            parts.append(pattern[start:position])
            start = position + 1
        position = _end_of_group(pattern, position) if pattern[position] == "(" else position + _size(pattern, position)
    return [*parts, pattern[start:]]


def _alternative(pattern: str) -> Alternative:
    begins = pattern.startswith("^")
    body = pattern[begins:]
    conditions = []
    while begins and body.startswith(("(?=", "(?!")):
        end = _end_of_group(body, 0)
        conditions.append((_string(body[3 : end - 1], begins=True), body[2] == "="))
        body = body[end:]
    return Alternative(_string(body, begins), tuple(conditions))


def _string(body: str, begins: bool) -> str:
    """Returns the regex of JSON strings that match a pattern without look-ahead, anchored at the start if `begins`."""
    ends = body.endswith("$") and (len(body) - len(body[:-1].rstrip("\\"))) % 2 == 1
    body = body[: len(body) - ends]
    pieces, position = [], 0
    while position < len(body):
        size, regex = _piece(body, position)
        pieces.append(regex)
        position += size
    anything = f"{_SAFE}*"
    return f'"{"" if begins else anything}({"".join(pieces)}){"" if ends else anything}"'


def _size(body: str, position: int) -> int:
    """Returns the length of the escape, class or character at a place."""
    if body[position] == "\\":
        return 2
    if body[position] != "[":
        return 1
    end = position + 1
    while end < len(body) and (body[end] != "]" or end == position + 1):
        end += 2 if body[end] == "\\" else 1
    return end + 1 - position


def _end_of_group(body: str, position: int) -> int:
    """Returns the end of the group that begins at a place. Raises ValueError if it is not closed."""
    depth = 0
    while position < len(body):
        depth += (body[position] == "(") - (body[position] == ")")
        position += _size(body, position)
        if not depth:
            return position
    raise ValueError("has a group that is not closed")


def _piece(body: str, position: int) -> tuple[int, str]:
    """Returns the length of the next piece of a pattern, and the piece in Rust's syntax."""
    character = body[position]
    if character == "\\":
        return 2, _escape(body[position + 1 : position + 2])
    if character == "[":
        return _class(body, position)
    if character == ".":
        return 1, _SAFE
    if body.startswith("(?", position) and not body.startswith("(?:", position):
        raise ValueError("has a group that begins with (?; expected plain groups or (?:")
    if character in '"^$' or ord(character) < 32:
        raise ValueError(f"contains {character!r}; expected anchors only at the ends, and no quotes or control codes")
    return 1, r"\/".replace("\\", "") if character == "/" else character


def _escape(letter: str) -> str:
    """Returns the regex of the escape `\\letter` outside brackets."""
    if letter in _CLASSES:
        return f"[{_CLASSES[letter]}]"
    if letter and letter.lower() in _CLASSES:
        return _negated_class(_CLASSES[letter.lower()])
    if not letter or letter.isalnum() or letter in '"\\':
        raise ValueError(f"has \\{letter}; expected \\d, \\w, \\s, their opposites, or an escaped sign")
    return escape_regex(letter)


def _class(body: str, position: int) -> tuple[int, str]:
    """Returns the length of the bracketed class at a place, and its regex."""
    end = position + _size(body, position) - 1
    inside = body[position + 1 : end]
    if inside in (r"\s\S", r"\S\s", r"\d\D", r"\D\d", r"\w\W", r"\W\w"):
        return end + 1 - position, _SAFE
    negated = inside.startswith("^")
    inside = inside.removeprefix("^")
    if end >= len(body) or not inside:
        raise ValueError("has brackets that are empty or not closed")
    items = re.sub(r"\\([dws])", lambda match: _CLASSES[match[1]], inside)
    rest = re.sub(r"\\[^a-zA-Z0-9\"\\]", "", items)
    if not negated and ('"' in rest or "\\" in rest):
        raise ValueError(f"has [{inside}]; expected no quotes, backslashes and other escapes in brackets")
    items = re.sub(r"([\[&~])", r"\\\1", items)
    return end + 1 - position, _negated_class(items) if negated else f"[{items}]"


def _negated_class(items: str) -> str:
    return r'[^"\\\x00-\x1F\x7F-\x9F' + items + "]"
