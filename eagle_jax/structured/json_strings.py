"""Automata of JSON strings: of any text, of a number of characters, of those that a pattern or a format describes."""

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from eagle_jax.structured.automaton_builder import automaton_of
from eagle_jax.structured.automaton_parts import automaton, either
from eagle_jax.structured.byte_automaton import ByteAutomaton, TooLarge, explored, intersection, too_large
from eagle_jax.structured.json_keywords import count, names
from eagle_jax.structured.json_regexes import CHARACTER, FORMATS, STRING, Alternative, alternatives
from eagle_jax.structured.regex_automaton import cached_automaton, regex_automaton

CHECKED_FORMATS = ("regex",)  # that validators check and that are not known here; others describe alone


def string(keywords: Mapping[str, Any], where: str, longest: int) -> ByteAutomaton:
    """Matches strings that keywords of a schema allow.

    Args:
        longest: what a larger `maxLength` counts as; less with a pattern or a format, but 64 at least.

    Raises:
        ValueError: there are none, or they cannot be followed.
    """
    least, most = count(keywords, "minLength", where) or 0, count(keywords, "maxLength", where)
    if most is not None and least > most:
        raise ValueError(f"{where} has minLength={least} above maxLength={most}; expected at most that")
    most = None if most is None else max(least, min(most, longest))
    pattern, form = keywords.get("pattern"), keywords.get("format")
    if form is not None and not isinstance(form, str):
        raise ValueError(f"{where}.format={json.dumps(form)[:60]}; expected the name of one")
    if pattern is not None and not isinstance(pattern, str):
        raise ValueError(f"{where}.pattern={json.dumps(pattern)[:60]}; expected a regular expression")
    if pattern is None and form in CHECKED_FORMATS:
        raise ValueError(f"{where}.format={form!r} cannot be followed here; expected one of {names(FORMATS)}")
    try:
        dfa = _string(pattern, form, least, most, longest)
    except TooLarge:
        raise too_large(where) from None
    except ValueError as error:
        raise ValueError(f"{where}.pattern={pattern!r} {error}") from None
    if not dfa.final.any():
        raise ValueError(f"{where} allows no string: {_shortly(keywords)}; expected that some text fits")
    return dfa


@functools.lru_cache(maxsize=256)
def _string(pattern: str | None, form: str | None, least: int, most: int | None, longest: int) -> ByteAutomaton:
    if pattern is not None:
        parts = [_of_alternative(one) for one in alternatives(pattern)]
        dfa = parts[0] if len(parts) == 1 else automaton_of(either(*map(automaton, parts)), "a pattern")
        if form in FORMATS:  # of the texts with the pattern those in the form, if there are any
            both = intersection(dfa, cached_automaton(f'"{FORMATS[form]}"'), "a pattern and a format")
            dfa = both if both.final.any() else dfa
    elif form in FORMATS:
        dfa = cached_automaton(f'"{FORMATS[form]}"')
    else:
        return cached_automaton(STRING) if not least and most is None else _of_length(least, most)
    if not least and most is None:
        return dfa
    fewer = None if most is None else max(least, min(most, max(64, 2 * longest // len(dfa.final))))
    counted = _with_length(dfa, least, fewer)
    return counted if fewer == most or counted.final.any() else _with_length(dfa, least, most)


def _of_alternative(one: Alternative) -> ByteAutomaton:
    dfa = regex_automaton(one.regex)
    for regex, is_required in one.conditions:
        dfa = intersection(dfa, regex_automaton(regex), "a pattern", without=not is_required)
    return dfa


def _of_length(least: int, most: int | None) -> ByteAutomaton:
    """Matches strings of `least` to `most` characters: copies of one character's automaton, one after another."""
    one = cached_automaton(CHARACTER)
    (last,) = np.flatnonzero(one.final).tolist()  # where a character is complete: the first state of the next copy
    width = len(one.final) - 1
    place = np.array([state - (state > last) for state in range(width + 1)] + [-1])
    place[last] = width
    inside = place[np.delete(one.next, last, axis=0)]
    copies = least + 1 if most is None else most
    begin = 1 + width * np.arange(copies + 1)
    block = np.where(inside < 0, -1, inside + begin[:copies, None, None])
    if most is None:
        block[-1][inside == width] = begin[least]
    end = int(begin[-1]) + 1
    table = np.full((end + 1, 256), -1, np.int32)
    table[1 : begin[-1]] = block.reshape(-1, 256)
    table[0, ord('"')], table[begin[least:], ord('"')] = 1, end
    return ByteAutomaton(table, np.arange(end + 1) == end)


def _with_length(dfa: ByteAutomaton, least: int, most: int | None) -> ByteAutomaton:
    """Returns the strings of an automaton, none of which has escapes, that have `least` to `most` characters."""
    lows = np.flatnonzero(np.append(True, np.any(np.diff(dfa.next, axis=1), axis=0)))
    bounds = sorted({*lows.tolist(), ord('"'), ord('"') + 1, 0x80, 0xC0, 256})
    rows = dfa.next.tolist()

    def steps(state: tuple[int, int]) -> Iterable[tuple[int, int, tuple[int, int]]]:
        place, length = state
        for low, high in zip(bounds, bounds[1:], strict=False):
            if (to := rows[place][low]) < 0:
                continue
            begins = low != ord('"') and not 0x80 <= low < 0xC0
            if begins and length == most:
                continue
            yield low, high - 1, (to, length + (begins and (most is not None or length < least)))

    return explored(
        (0, 0),
        steps,
        lambda state: bool(dfa.final[state[0]]) and state[1] >= least,
        "a pattern or a format of so many characters",
    )


def _shortly(keywords: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)[:60]}" for name, value in keywords.items())
