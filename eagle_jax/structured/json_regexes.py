"""Regular expressions of JSON's strings and numbers, and of the formats and patterns that a schema names."""

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
_LABELS = "[a-z0-9]+([.-][a-z0-9]+)*"  # of any length: few states, so that they can be counted
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

_SAFE = r'[^"\\\x00-\x1F\x7F-\x9F]'  # characters of a JSON string that stand for themselves
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " "}  # as ECMA-262 has them, of characters that need no escape


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One alternative of a pattern, as expressions of JSON strings.

    Attributes:
        regex: regular expression of its texts.
        conditions: further expressions, from look-ahead at its beginning, and whether a text has to match each of them
            or must not.
    """

    regex: str
    conditions: tuple[tuple[str, bool], ...] = ()


def escaped(text: str) -> str:
    """Returns a regular expression that matches this text alone."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", text)


def alternatives(pattern: str) -> list[Alternative]:
    """Returns the JSON strings, without escapes, in which a schema's `pattern` (ECMA-262) finds something.

    Raises:
        ValueError: the pattern has what no finite automaton holds, or means characters that JSON escapes.
    """
    return [_alternative(one) for one in _split(pattern)]


def _split(pattern: str) -> list[str]:
    """Splits a pattern at each `|` outside of groups."""
    parts, begin, place = [], 0, 0
    while place < len(pattern):
        if pattern[place] == "|":
            parts.append(pattern[begin:place])
            begin = place + 1
        place = _end_of_group(pattern, place) if pattern[place] == "(" else place + _size(pattern, place)
    return [*parts, pattern[begin:]]


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
    """Returns a regex of JSON strings that a pattern without look-ahead matches; at their beginning if it `begins`."""
    ends = body.endswith("$") and (len(body) - len(body[:-1].rstrip("\\"))) % 2 == 1
    body = body[: len(body) - ends]
    out, place = [], 0
    while place < len(body):
        taken, written = _piece(body, place)
        out.append(written)
        place += taken
    anything = f"{_SAFE}*"
    return f'"{"" if begins else anything}({"".join(out)}){"" if ends else anything}"'


def _size(body: str, place: int) -> int:
    """Returns how many characters the escape, the class or the sign has that begins at a place."""
    if body[place] == "\\":
        return 2
    if body[place] != "[":
        return 1
    end = place + 1
    while end < len(body) and (body[end] != "]" or end == place + 1):
        end += 2 if body[end] == "\\" else 1
    return end + 1 - place


def _end_of_group(body: str, place: int) -> int:
    """Returns the place after the group that begins at a place. Raises ValueError if it does not end."""
    depth = 0
    while place < len(body):
        depth += (body[place] == "(") - (body[place] == ")")
        place += _size(body, place)
        if not depth:
            return place
    raise ValueError("has a group that is not closed")


def _piece(body: str, place: int) -> tuple[int, str]:
    """Returns how many characters of a pattern the next piece has, and what it is in Rust's syntax."""
    character = body[place]
    if character == "\\":
        return 2, _escape(body[place + 1 : place + 2])
    if character == "[":
        return _class(body, place)
    if character == ".":
        return 1, _SAFE
    if body.startswith("(?", place) and not body.startswith("(?:", place):
        raise ValueError("has a group that begins with (?; expected plain groups, or (?: alone")
    if character in '"^$' or ord(character) < 32:
        raise ValueError(
            f"has {character!r} within; expected anchors at its ends alone, and no quotes or control codes"
        )
    return 1, r"\/".replace("\\", "") if character == "/" else character


def _escape(letter: str) -> str:
    """Returns what `\\letter` is outside of brackets."""
    if letter in _CLASSES:
        return f"[{_CLASSES[letter]}]"
    if letter and letter.lower() in _CLASSES:
        return _without(_CLASSES[letter.lower()])
    if not letter or letter.isalnum() or letter in '"\\':
        raise ValueError(f"has \\{letter}; expected \\d, \\w, \\s, their opposites, or an escaped sign")
    return escaped(letter)


def _class(body: str, place: int) -> tuple[int, str]:
    """Returns a class in brackets."""
    end = place + _size(body, place) - 1
    inside = body[place + 1 : end]
    if inside in (r"\s\S", r"\S\s", r"\d\D", r"\D\d", r"\w\W", r"\W\w"):
        return end + 1 - place, _SAFE
    negated = inside.startswith("^")
    inside = inside.removeprefix("^")
    if end >= len(body) or not inside:
        raise ValueError("has brackets that are empty or not closed")
    items = re.sub(r"\\([dws])", lambda match: _CLASSES[match[1]], inside)
    rest = re.sub(r"\\[^a-zA-Z0-9\"\\]", "", items)
    if not negated and ('"' in rest or "\\" in rest):
        raise ValueError(f"has [{inside}]; expected no quotes, backslashes and other escapes in brackets")
    items = re.sub(r"([\[&~])", r"\\\1", items)
    return end + 1 - place, _without(items) if negated else f"[{items}]"


def _without(items: str) -> str:
    return r'[^"\\\x00-\x1F\x7F-\x9F' + items + "]"
