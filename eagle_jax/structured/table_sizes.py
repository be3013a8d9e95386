"""Sizes of a batch's tables of bad words and automata."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eagle_jax.structured.token_automaton import TokenAutomaton

Words = tuple[tuple[int, ...], ...]


class TableSizes(NamedTuple):
    """Sizes that a program is compiled for, powers of two. The defaults are the minimum, which suffices for most
    requests, such as any JSON object, so that they share a program.

    Attributes:
        words: bad words of several tokens in a row.
        word_tokens: tokens of a bad word.
        automata: distinct automata of a batch.
        states: states of an automaton.
        classes: classes of tokens that are equivalent in every state.
        masks: distinct sets of allowed tokens.
    """

    words: int = 8
    word_tokens: int = 8
    automata: int = 4
    states: int = 2048
    classes: int = 256
    masks: int = 128

    def covers(self, other: "TableSizes") -> bool:
        """Returns whether every size is at least that of `other`."""
        return all(map(operator.ge, self, other))


def sizes_for(words: Iterable[Words], automata: Iterable[TokenAutomaton | None]) -> TableSizes:
    """Returns the sizes needed for rows with these bad words and automata."""
    long_words = [[word for word in row if len(word) > 1] for row in words]  # single tokens are banned without a table
    distinct = distinct_automata(automata)
    needed = TableSizes(
        words=max(map(len, long_words), default=0),
        word_tokens=max((len(word) for row in long_words for word in row), default=0),
        automata=len(distinct),
        states=max((len(automaton.next) for automaton in distinct), default=0),
        classes=max((automaton.next.shape[1] for automaton in distinct), default=0),
        masks=max((len(automaton.masks) for automaton in distinct), default=0),
    )
    return TableSizes(*map(_power_of_two, needed, TableSizes()))


def distinct_automata(automata: Iterable[TokenAutomaton | None]) -> list[TokenAutomaton]:
    """Returns the automata without duplicates."""
    return list({id(automaton): automaton for automaton in automata if automaton is not None}.values())


def smallest_covering(ready: Sequence[TableSizes], needed: TableSizes) -> TableSizes:
    """Returns the smallest of `ready` that cover `needed`; `needed` itself if none do."""
    return min((sizes for sizes in ready if sizes.covers(needed)), key=math.prod, default=needed)


def _power_of_two(needed: int, minimum: int) -> int:
    return max(minimum, 1 << max(needed - 1, 0).bit_length())
