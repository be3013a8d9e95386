"""Automata that are put together of parts, made deterministic."""

import time
from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Int

from eagle_jax.structured.byte_automaton import MOST_STATES, SECONDS, ByteAutomaton, smallest, too_large

# Adds its states after a given one, and returns the one in which it is complete.
Part = Callable[["Builder", int], int]
MOST_PARTS = 100_000  # states before equal ones are merged
NO_EDGES: list = []  # of states that nothing is added to


class Builder:
    """An automaton that is being put together.

    Args:
        what: the place of the form, as errors say it.

    Attributes:
        edges: edges of each state: lowest byte, highest byte, next state.
        skips: states that each state is at the same time (epsilon edges).
        block_of: the block that holds each state's edges instead; -1 for none.
        blocks: deterministic automata, and the numbers of their first states.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.edges: list[list[tuple[int, int, int]]] = []
        self.skips: list[list[int]] = []
        self.block_of: list[int] = []
        self.blocks: list[tuple[ByteAutomaton, int]] = []

    def state(self) -> int:
        self._check(1)
        self.edges.append([])
        self.skips.append([])
        self.block_of.append(-1)
        return len(self.edges) - 1

    def block(self, automaton: ByteAutomaton, end: int) -> int:
        """Adds an automaton, whose texts lead to `end`; its first state."""
        first, count = len(self.edges), len(automaton.final)
        self._check(count)
        self.edges += [NO_EDGES] * count
        self.skips += [[end] if is_final else NO_EDGES for is_final in automaton.final.tolist()]
        self.block_of += [len(self.blocks)] * count
        self.blocks.append((automaton, first))
        return first

    def _check(self, more: int) -> None:
        if len(self.edges) + more > MOST_PARTS:
            raise too_large(self._subject)


def automaton_of(part: Part, subject: str) -> ByteAutomaton:
    """Returns the deterministic automaton of a part.

    Raises:
        ValueError: it is too large.
    """
    builder = Builder(subject)
    start = builder.state()
    end = part(builder, start)
    return _Subsets(builder, end, subject).automaton(start)


class _Subsets:
    """The subset construction, in which a block that no other state runs in parallel with is taken as a whole."""

    def __init__(self, builder: Builder, end: int, subject: str):
        self._builder, self._end, self._subject = builder, end, subject
        self._until = time.monotonic() + SECONDS
        bounds = {0, 256} | {bound for edges in builder.edges for low, high, _ in edges for bound in (low, high + 1)}
        different = {id(automaton): automaton.next for automaton, _ in builder.blocks}
        for table in different.values():
            bounds.update((np.flatnonzero(np.any(np.diff(table, axis=1), axis=0)) + 1).tolist())
        self._lows = np.array(sorted(bounds)[:-1])  # bytes from one to the next do the same
        self._class_of = {low: i for i, low in enumerate(sorted(bounds))}
        self._tables = {key: table[:, self._lows] for key, table in different.items()}
        self._closures: dict[int, frozenset[int]] = {}
        self._number: dict[frozenset[int], int] = {}
        self._first_of_block: dict[int, int] = {}  # the number of a block's first state, alone
        self._count = 0
        self._open: list[frozenset[int] | int] = []  # sets of states, and blocks, whose rows are to be made
        self._rows: list[tuple[int, Int[np.ndarray, "n c"]]] = []  # and the number of the first one
        self._final: list[int] = []

    def automaton(self, start: int) -> ByteAutomaton:
        first = self._number_of(self._closure((start,)))
        while self._open:
            one = self._open.pop()
            self._expand(one) if isinstance(one, frozenset) else self._expand_block(one)
            if self._count > 2 * MOST_STATES or time.monotonic() > self._until:
                raise too_large(self._subject)
        table, final = np.full((self._count, len(self._lows)), -1, np.int32), np.zeros(self._count, bool)
        for number, rows in self._rows:
            table[number : number + len(rows)] = rows
        final[self._final] = True
        return smallest(
            table, final, first, self._subject, np.searchsorted(self._lows, np.arange(256), side="right") - 1
        )

    def _closure(self, states: Iterable[int]) -> frozenset[int]:
        """Returns all states that these are at once, and that something leads out of."""
        return frozenset().union(*(self._closures.get(state) or self._close(state) for state in states))

    def _close(self, state: int) -> frozenset[int]:
        reached, open_ = {state}, [state]
        while open_:
            for other in self._builder.skips[open_.pop()]:
                if other not in reached:
                    reached.add(other)
                    open_.append(other)
        closure = frozenset(
            one for one in reached if one == self._end or self._builder.edges[one] or self._in_block(one)
        )
        self._closures[state] = closure
        return closure

    def _in_block(self, state: int) -> bool:
        block = self._builder.block_of[state]
        if block < 0:
            return False
        automaton, first = self._builder.blocks[block]
        return bool((automaton.next[state - first] >= 0).any())

    def _number_of(self, states: frozenset[int]) -> int:
        if len(states) == 1:
            (state,) = states
            block = self._builder.block_of[state]
            if block >= 0 and not self._builder.skips[state]:
                return self._number_of_block(block) + state - self._builder.blocks[block][1]
        if states not in self._number:
            self._number[states] = self._count
            self._count += 1
            self._open.append(states)
        return self._number[states]

    def _number_of_block(self, block: int) -> int:
        if block not in self._first_of_block:
            self._first_of_block[block] = self._count
            self._count += len(self._builder.blocks[block][0].final)
            self._open.append(block)
        return self._first_of_block[block]

    def _expand_block(self, block: int) -> None:
        automaton, first = self._builder.blocks[block]
        number = np.append(np.arange(len(automaton.final), dtype=np.int32) + self._first_of_block[block], -1)
        for state in np.flatnonzero(automaton.final).tolist():
            number[state] = self._number_of(self._closure((first + state,)))
        self._rows.append((self._first_of_block[block], number[self._tables[id(automaton)]]))

    def _expand(self, states: frozenset[int]) -> None:
        to: dict[int, list[int]] = {}
        for state in sorted(states):
            block = self._builder.block_of[state]
            if block >= 0:
                automaton, first = self._builder.blocks[block]
                for byte_class, following in enumerate(self._tables[id(automaton)][state - first].tolist()):
                    if following >= 0:
                        to.setdefault(byte_class, []).append(first + following)
            for low, high, following in self._builder.edges[state]:
                for byte_class in range(self._class_of[low], self._class_of[high + 1]):
                    to.setdefault(byte_class, []).append(following)
        row = np.full((1, len(self._lows)), -1, np.int32)
        reached = {tuple(following): 0 for following in to.values()}
        for following in reached:
            reached[following] = self._number_of(self._closure(following))
        for byte_class, following in to.items():
            row[0, byte_class] = reached[tuple(following)]
        self._rows.append((self._number[states], row))
        if self._end in states:
            self._final.append(self._number[states])
