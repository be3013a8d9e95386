"""Automata of texts with marks, which may be special tokens: around a form, and reasoning before one."""

from collections.abc import Iterable

from eagle_jax.structured.automaton_builder import Part, automaton_of
from eagle_jax.structured.automaton_parts import automaton, either, literal, optional, sequence
from eagle_jax.structured.byte_automaton import ByteAutomaton, explored
from eagle_jax.text.token_bytes import MARK, SPECIAL

LAST = 0xF7  # no text has a larger byte


def marked(text: str) -> Part:
    """Matches a text, in which what is written like a special token may be one."""
    parts, at = list[Part](), 0
    for match in MARK.finditer(text):
        mark = match.group()
        parts += [literal(text[at : match.start()]), either(literal(mark), literal(SPECIAL + mark.encode()))]
        at = match.end()
    return sequence(*parts, literal(text[at:]))


def framed(dfa: ByteAutomaton, before: str, after: str, subject: str) -> ByteAutomaton:
    """Returns the texts of an automaton with texts before and after them. Raises ValueError if it is too large."""
    if not before and not after:
        return dfa
    return automaton_of(sequence(marked(before), automaton(dfa), marked(after)), subject)


def after_reasoning(answer: ByteAutomaton, begin: str, end: str, subject: str) -> ByteAutomaton:
    """Returns the texts of an automaton after any reasoning.

    Args:
        begin: the mark that begins reasoning, which need not come; "" where the prompt has it already, and so it does.
        end: the text that ends it; up to two line breaks may follow.
        subject: the place of the form, as errors say it.

    Raises:
        ValueError: it is too large.
    """
    first = MARK.match(end.lstrip())
    mark = end if first is None else first.group()
    line = optional(literal("\n"))
    reasoning = sequence(automaton(_up_to(mark)), marked(end.lstrip()[len(mark) :]), line, line)
    if begin:
        reasoning = optional(sequence(line, marked(begin), reasoning))
    return automaton_of(sequence(reasoning, automaton(answer)), subject)


def _up_to(mark: str) -> ByteAutomaton:
    """Matches any text up to where a mark is complete for the first time, as text or as a special token."""
    expected = mark.encode()
    done = len(expected)

    def steps(state: tuple[bool, int]) -> Iterable[tuple[int, int, tuple[bool, int]]]:
        is_token, matched = state
        if matched == done:
            return
        if is_token:
            yield expected[matched], expected[matched], (True, matched + 1)
            return
        for byte in range(LAST + 1):
            yield byte, byte, (False, _longest(expected, expected[:matched] + bytes([byte])))
        yield SPECIAL[0], SPECIAL[0], (True, 0)

    return explored((False, 0), steps, lambda state: state[1] == done, "reasoning")


def _longest(expected: bytes, text: bytes) -> int:
    """Returns the number of bytes of the longest beginning of `expected` that a text ends with."""
    return next(size for size in range(min(len(expected), len(text)), -1, -1) if text.endswith(expected[:size]))
