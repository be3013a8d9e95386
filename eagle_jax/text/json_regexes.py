"""Regular expressions of JSON's strings and numbers, with the bounds that a schema sets."""

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
    "uri": rf"https?://{_LABEL}(\.{_LABEL})*(:[1-9][0-9]{{0,3}})?(/[A-Za-z0-9._~+-]*)*",
}

_SAFE = r'[^"\\\x00-\x1F\x7F-\x9F]'  # characters of a JSON string that stand for themselves
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " "}  # as ECMA-262 has them, of characters that need no escape


def escaped(text: str) -> str:
    """A regular expression that matches this text alone."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", text)


def between(low: int | None, high: int | None) -> str:
    """Whole numbers from `low` to `high`, either of which may be open.

    Raises:
        ValueError: there is none.
    """
    if low is not None and high is not None and low > high:
        raise ValueError(f"no whole number is from {low} to {high}")
    parts = []
    if low is None or low < 0:
        least = max(1, 0 if high is None else -high)
        parts.append(f"-({_magnitudes(least, None if low is None else -low)})")
    if high is None or high >= 0:
        parts.append(_magnitudes(max(0, low or 0), high))
    return f"({'|'.join(parts)})"


def fractions_between(low: int | None, high: int | None, *, above: bool = False, below: bool = False) -> str:
    """Decimal numbers from `low` to `high`, either of which may be open; without `low` or `high` themselves where they
    have to be `above` or `below` them.

    Raises:
        ValueError: there is none.
    """
    if low is not None and high is not None and (low > high or low == high and (above or below)):
        raise ValueError(f"no number is from {low} to {high}")
    parts = []
    if low is None or low < 0:
        parts += _decimals(max(0, -(high or 0)), None if low is None else -low, "-", below and (high or 0) <= 0, above)
    if high is None or high >= 0:
        parts += _decimals(max(0, low or 0), high, "", above and (low or 0) >= 0, below)
    return f"({'|'.join(parts)})"


def _decimals(least: int, most: int | None, sign: str, without_least: bool, without_most: bool) -> list[str]:
    """Magnitudes from `least` >= 0 to `most`, with a sign before each."""
    parts = []
    if without_least:
        if most is None or least < most:
            parts.append(rf"{sign}{least}\.[0-9]*[1-9][0-9]*")
        least += 1
    if most is None or least < most:  # the whole part is below `most`
        parts.append(rf"{sign}({_magnitudes(least, None if most is None else most - 1)})(\.[0-9]+)?")
    if most is not None and not without_most and least <= most:
        parts.append(rf"{sign}{most}(\.0+)?")
    return parts


def _magnitudes(low: int, high: int | None) -> str:
    """Numbers from `low` >= 0 to `high` without leading zeros."""
    longest = len(str(low if high is None else high))
    parts = []
    for digits in range(len(str(low)), longest + 1):
        least = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        most = 10**digits - 1 if high is None else min(high, 10**digits - 1)
        parts.append(_same_length(str(least), str(most)))
    if high is None:
        parts.append(f"[1-9][0-9]{{{longest},}}")
    return "|".join(parts)


def _same_length(low: str, high: str) -> str:
    """Numbers between two of as many digits."""
    if low == high:
        return low
    if len(low) == 1:
        return f"[{low}-{high}]"
    rest = len(low) - 1
    if low[0] == high[0]:
        return f"{low[0]}({_same_length(low[1:], high[1:])})"
    parts, first, last = [], int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        parts.append(f"{low[0]}({_same_length(low[1:], '9' * rest)})")
        first += 1
    if high[1:] != "9" * rest:
        parts.append(f"{high[0]}({_same_length('0' * rest, high[1:])})")
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}][0-9]{{{rest}}}")
    return "|".join(parts)


def string_matching(pattern: str) -> str:
    """JSON strings with text that a schema's `pattern` finds something in (ECMA-262), of characters without escapes.

    Raises:
        ValueError: the pattern has what no finite automaton holds, or means characters that JSON escapes.
    """
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    body = pattern[begins : len(pattern) - ends]
    out, place = [], 0
    while place < len(body):
        taken, written = _piece(body, place)
        out.append(written)
        place += taken
    anything = f"{_SAFE}*"
    return f'"{"" if begins else anything}({"".join(out)}){"" if ends else anything}"'


def _piece(body: str, place: int) -> tuple[int, str]:
    """How many characters of a pattern the next piece has, and what it is in Rust's syntax."""
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
    """What `\\letter` is outside of brackets."""
    if letter in _CLASSES:
        return f"[{_CLASSES[letter]}]"
    if letter and letter.lower() in _CLASSES:
        return _without(_CLASSES[letter.lower()])
    if not letter or letter.isalnum() or letter in '"\\':
        raise ValueError(f"has \\{letter}; expected \\d, \\w, \\s, their opposites, or an escaped sign")
    return escaped(letter)


def _class(body: str, place: int) -> tuple[int, str]:
    """A class in brackets."""
    end = place + 1
    while end < len(body) and (body[end] != "]" or end == place + 1):
        end += 2 if body[end] == "\\" else 1
    inside = body[place + 1 : end]
    negated = inside.startswith("^")
    inside = inside.removeprefix("^")
    if end >= len(body) or not inside:
        raise ValueError("has brackets that are empty or not closed")
    items = re.sub(r"\\([dws])", lambda found: _CLASSES[found[1]], inside)
    rest = re.sub(r"\\[^a-zA-Z0-9\"\\]", "", items)
    if not negated and ('"' in rest or "\\" in rest):
        raise ValueError(f"has [{inside}]; expected no quotes, backslashes and other escapes in brackets")
    items = re.sub(r"([\[&~])", r"\\\1", items)
    return end + 1 - place, _without(items) if negated else f"[{items}]"


def _without(items: str) -> str:
    return r'[^"\\\x00-\x1F\x7F-\x9F' + items + "]"
