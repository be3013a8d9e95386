"""Automata of texts with marks, which may be special tokens: around a form, and reasoning before one."""

from collections.abc import Iterable

from eagle_jax.structured.automaton_builder import Part, automaton_of
from eagle_jax.structured.automaton_parts import automaton, either, literal, optional, sequence
from eagle_jax.structured.byte_automaton import ByteAutomaton, explored
from eagle_jax.text.token_bytes import MARK, SPECIAL

LAST = 0xF7  # no text has a larger byte


def marked(text: str) -> Part:
    """A text, in which what is written like a special token may be one."""
    parts, at = list[Part](), 0
    for found in MARK.finditer(text):
        mark = found.group()
        parts += [literal(text[at : found.start()]), either(literal(mark), literal(SPECIAL + mark.encode()))]
        at = found.end()
    return sequence(*parts, literal(text[at:]))


def framed(made: ByteAutomaton, before: str, after: str, what: str) -> ByteAutomaton:
    """The texts of an automaton with texts before and after them. Raises ValueError if it is too large."""
    if not before and not after:
        return made
    return automaton_of(sequence(marked(before), automaton(made), marked(after)), what)


def after_reasoning(made: ByteAutomaton, begin: str, end: str, what: str) -> ByteAutomaton:
    """The texts of an automaton after any reasoning.

    Args:
        begin: the mark that begins reasoning, which need not come; "" where the prompt has it already, and so it does.
        end: the text that ends it; up to two line breaks may follow.
        what: the place of the form, as errors say it.

    Raises:
        ValueError: it is too large.
    """
    first = MARK.match(end.lstrip())
    mark = end if first is None else first.group()
    line = optional(literal("\n"))
    reasoning = sequence(automaton(_up_to(mark)), marked(end.lstrip()[len(mark) :]), line, line)
    if begin:
        reasoning = optional(sequence(line, marked(begin), reasoning))
    return automaton_of(sequence(reasoning, automaton(made)), what)


def _up_to(mark: str) -> ByteAutomaton:
    """Any text up to where a mark is complete for the first time, as text or as a special token."""
    wanted = mark.encode()
    done = len(wanted)

    def steps(state: tuple[bool, int]) -> Iterable[tuple[int, int, tuple[bool, int]]]:
        is_token, matched = state
        if matched == done:
            return
        if is_token:
            yield wanted[matched], wanted[matched], (True, matched + 1)
            return
        for byte in range(LAST + 1):
            yield byte, byte, (False, _longest(wanted, wanted[:matched] + bytes([byte])))
        yield SPECIAL[0], SPECIAL[0], (True, 0)

    return explored((False, 0), steps, lambda state: state[1] == done, "reasoning")


def _longest(wanted: bytes, text: bytes) -> int:
    """Bytes of the longest beginning of `wanted` that a text ends with."""
    return next(size for size in range(min(len(wanted), len(text)), -1, -1) if text.endswith(wanted[:size]))
