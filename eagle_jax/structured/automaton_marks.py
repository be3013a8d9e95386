"""Automata of texts with marks, which may be special tokens: around a form, and around reasoning before it."""

from collections.abc import Iterable

from eagle_jax.structured.automaton_builder import Part, automaton_of
from eagle_jax.structured.automaton_parts import automaton, either, literal, optional, sequence
from eagle_jax.structured.byte_automaton import ByteAutomaton, explore
from eagle_jax.text.token_bytes import MARK, SPECIAL

MAX_TEXT_BYTE = 0xF7  # UTF-8 has no larger byte


def with_marks(text: str) -> Part:
    """Matches a text whose marks may be written as text or as special tokens."""
    parts, position = list[Part](), 0
    for match in MARK.finditer(text):
        mark = match.group()
        parts += [literal(text[position : match.start()]), either(literal(mark), literal(SPECIAL + mark.encode()))]
        position = match.end()
    return sequence(*parts, literal(text[position:]))


def surround(dfa: ByteAutomaton, before: str, after: str, subject: str) -> ByteAutomaton:
    """Returns the automaton with fixed texts before and after its own. Raises ValueError if it is too large."""
    if not before and not after:
        return dfa
    return automaton_of(sequence(with_marks(before), automaton(dfa), with_marks(after)), subject)


def after_reasoning(answer: ByteAutomaton, begin: str, end: str, subject: str) -> ByteAutomaton:
    """Returns the automaton of reasoning followed by an answer. Raises ValueError if it is too large.

    Args:
        begin: the mark that begins the reasoning, which is then optional; "" if the prompt has begun it already.
        end: the text that ends the reasoning; up to two line breaks may follow.
        subject: description of the automaton, for error messages.
    """
    first = MARK.match(end.lstrip())
    mark = end if first is None else first.group()
    line = optional(literal("\n"))
    reasoning = sequence(automaton(_up_to(mark)), with_marks(end.lstrip()[len(mark) :]), line, line)
    if begin:
        reasoning = optional(sequence(line, with_marks(begin), reasoning))
    return automaton_of(sequence(reasoning, automaton(answer)), subject)


def _up_to(mark: str) -> ByteAutomaton:
    """Matches any text up to the first occurrence of a mark, as text or as a special token."""
    mark_bytes = mark.encode()
    done = len(mark_bytes)

    def steps(state: tuple[bool, int]) -> Iterable[tuple[int, int, tuple[bool, int]]]:
        is_token, matched = state
        if matched == done:
            return
        if is_token:
            yield mark_bytes[matched], mark_bytes[matched], (True, matched + 1)
            return
        for byte in range(MAX_TEXT_BYTE + 1):
            yield byte, byte, (False, _longest(mark_bytes, mark_bytes[:matched] + bytes([byte])))
        yield SPECIAL[0], SPECIAL[0], (True, 0)

    return explore((False, 0), steps, lambda state: state[1] == done, "reasoning")


def _longest(expected: bytes, text: bytes) -> int:
    """Returns the length of the longest prefix of `expected` that `text` ends with."""
    return next(size for size in range(min(len(expected), len(text)), -1, -1) if text.endswith(expected[:size]))
