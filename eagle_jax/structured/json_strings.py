"""Automata of JSON strings, with the keywords for length, pattern and format."""

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from eagle_jax.structured.automaton_builder import automaton_of
from eagle_jax.structured.automaton_parts import automaton, either
from eagle_jax.structured.byte_automaton import ByteAutomaton, TooLarge, explore, intersection, too_large
from eagle_jax.structured.json_keywords import join_names, read_count
from eagle_jax.structured.json_regexes import CHARACTER, FORMATS, STRING, Alternative, alternatives
from eagle_jax.structured.regex_automaton import cached_automaton, regex_automaton

UNSUPPORTED_FORMATS = ("regex",)  # validators check these; other unknown formats are annotations


def string(keywords: Mapping[str, Any], where: str, longest: int) -> ByteAutomaton:
    """Matches strings that the keywords of a schema allow.

    Args:
        longest: a larger `maxLength` is reduced to this, with a pattern or a format to less, but not below 64.

    Raises:
        ValueError: no string is allowed, or a keyword is not supported.
    """
    min_length, max_length = read_count(keywords, "minLength", where) or 0, read_count(keywords, "maxLength", where)
    if max_length is not None and min_length > max_length:
        raise ValueError(
            f"{where} has minLength={min_length} above maxLength={max_length}; expected a minimum up to the maximum"
        )
    max_length = None if max_length is None else max(min_length, min(max_length, longest))
    pattern, format_name = keywords.get("pattern"), keywords.get("format")
    if format_name is not None and not isinstance(format_name, str):
        raise ValueError(f"{where}.format={json.dumps(format_name)[:60]}; expected the name of a format")
    if pattern is not None and not isinstance(pattern, str):
        raise ValueError(f"{where}.pattern={json.dumps(pattern)[:60]}; expected a regular expression")
    if pattern is None and format_name in UNSUPPORTED_FORMATS:
        raise ValueError(f"{where}.format={format_name!r} is not supported; expected one of {join_names(FORMATS)}")
    try:
        dfa = _string(pattern, format_name, min_length, max_length, longest)
    except TooLarge:
        raise too_large(where) from None
    except ValueError as error:
        raise ValueError(f"{where}.pattern={pattern!r} {error}") from None
    if not dfa.final.any():
        raise ValueError(f"{where} allows no string: {_summary(keywords)}; expected that some text is valid")
    return dfa


@functools.lru_cache(maxsize=256)
def _string(
    pattern: str | None, format_name: str | None, min_length: int, max_length: int | None, longest: int
) -> ByteAutomaton:
    if pattern is not None:
        parts = [_alternative_automaton(alternative) for alternative in alternatives(pattern)]
        dfa = parts[0] if len(parts) == 1 else automaton_of(either(*map(automaton, parts)), "a pattern")
        if format_name in FORMATS:  # the format is ignored where no text has both
            restricted = intersection(dfa, cached_automaton(f'"{FORMATS[format_name]}"'), "a pattern and a format")
            dfa = restricted if restricted.final.any() else dfa
    elif format_name in FORMATS:
        dfa = cached_automaton(f'"{FORMATS[format_name]}"')
    else:
        return (
            cached_automaton(STRING)
            if not min_length and max_length is None
            else _length_automaton(min_length, max_length)
        )
    if not min_length and max_length is None:
        return dfa
    counted_max = (
        None if max_length is None else max(min_length, min(max_length, max(64, 2 * longest // len(dfa.final))))
    )
    with_length = _with_length(dfa, min_length, counted_max)
    return (
        with_length
        if counted_max == max_length or with_length.final.any()
        else _with_length(dfa, min_length, max_length)
    )


def _alternative_automaton(alternative: Alternative) -> ByteAutomaton:
    dfa = regex_automaton(alternative.regex)
    for regex, is_required in alternative.conditions:
        dfa = intersection(dfa, regex_automaton(regex), "a pattern", without=not is_required)
    return dfa


def _length_automaton(min_length: int, max_length: int | None) -> ByteAutomaton:
    """Matches strings of `min_length` to `max_length` characters, by copies of one character's automaton."""
    character = cached_automaton(CHARACTER)
    (last,) = np.flatnonzero(character.final).tolist()  # the final state, which is the first state of the next copy
    width = len(character.final) - 1
    place = np.array([state - (state > last) for state in range(width + 1)] + [-1])
    place[last] = width
    inside = place[np.delete(character.next, last, axis=0)]
    copies = min_length + 1 if max_length is None else max_length
    begin = 1 + width * np.arange(copies + 1)
    block = np.where(inside < 0, -1, inside + begin[:copies, None, None])
    if max_length is None:
        block[-1][inside == width] = begin[min_length]
    end = int(begin[-1]) + 1
    table = np.full((end + 1, 256), -1, np.int32)
    table[1 : begin[-1]] = block.reshape(-1, 256)
    table[0, ord('"')], table[begin[min_length:], ord('"')] = 1, end
    return ByteAutomaton(table, np.arange(end + 1) == end)


def _with_length(dfa: ByteAutomaton, min_length: int, max_length: int | None) -> ByteAutomaton:
    """Restricts an automaton of strings without escapes to `min_length` to `max_length` characters."""
    class_starts = np.flatnonzero(np.append(True, np.any(np.diff(dfa.next, axis=1), axis=0)))
    bounds = sorted({*class_starts.tolist(), ord('"'), ord('"') + 1, 0x80, 0xC0, 256})
    rows = dfa.next.tolist()

    def steps(state: tuple[int, int]) -> Iterable[tuple[int, int, tuple[int, int]]]:
        dfa_state, length = state
        for low, high in zip(bounds, bounds[1:], strict=False):
            if (target := rows[dfa_state][low]) < 0:
                continue
            begins = low != ord('"') and not 0x80 <= low < 0xC0
            if begins and length == max_length:
                continue
            yield low, high - 1, (target, length + (begins and (max_length is not None or length < min_length)))

    return explore(
        (0, 0),
        steps,
        lambda state: bool(dfa.final[state[0]]) and state[1] >= min_length,
        "a pattern or a format of so many characters",
    )


def _summary(keywords: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)[:60]}" for name, value in keywords.items())
