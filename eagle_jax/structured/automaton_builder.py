"""Builds deterministic automata from parts: Thompson's construction, then the subset construction."""

import time
from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Int

from eagle_jax.structured.byte_automaton import MAX_STATES, SECONDS, ByteAutomaton, minimize, too_large

# Adds states that start from the given one; returns the state in which the part is complete.
Part = Callable[["Builder", int], int]
MAX_BUILDER_STATES = 100_000  # before equivalent states are merged
NO_EDGES: list = []  # shared by all states inside blocks


class Builder:
    """A nondeterministic automaton under construction.

    Args:
        subject: description of the automaton, for error messages.

    Attributes:
        edges: edges of each state: lowest byte, highest byte, next state.
        epsilon_edges: states that each state reaches without a byte.
        block_of: index of the block that holds the edges of each state; -1 if `edges` does.
        blocks: deterministic automata, each with the number of its first state.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.edges: list[list[tuple[int, int, int]]] = []
        self.epsilon_edges: list[list[int]] = []
        self.block_of: list[int] = []
        self.blocks: list[tuple[ByteAutomaton, int]] = []

    def state(self) -> int:
        self._check(1)
        self.edges.append([])
        self.epsilon_edges.append([])
        self.block_of.append(-1)
        return len(self.edges) - 1

    def block(self, automaton: ByteAutomaton, end: int) -> int:
        """Adds an automaton whose final states lead to `end`; returns its first state."""
        first, count = len(self.edges), len(automaton.final)
        self._check(count)
        self.edges += [NO_EDGES] * count
        self.epsilon_edges += [[end] if is_final else NO_EDGES for is_final in automaton.final.tolist()]
        self.block_of += [len(self.blocks)] * count
        self.blocks.append((automaton, first))
        return first

    def _check(self, num_new: int) -> None:
        if len(self.edges) + num_new > MAX_BUILDER_STATES:
            raise too_large(self._subject)


def automaton_of(part: Part, subject: str) -> ByteAutomaton:
    """Returns the deterministic automaton of a part. Raises ValueError if it is too large."""
    builder = Builder(subject)
    start = builder.state()
    end = part(builder, start)
    return _Subsets(builder, end, subject).automaton(start)


class _Subsets:
    """The subset construction; a block that no other state runs in parallel with is copied whole."""

    def __init__(self, builder: Builder, end: int, subject: str):
        self._builder, self._end, self._subject = builder, end, subject
        self._deadline = time.monotonic() + SECONDS
        bounds = {0, 256} | {bound for edges in builder.edges for low, high, _ in edges for bound in (low, high + 1)}
        table_of = {id(automaton): automaton.next for automaton, _ in builder.blocks}
        for table in table_of.values():
            bounds.update((np.flatnonzero(np.any(np.diff(table, axis=1), axis=0)) + 1).tolist())
        self._class_starts = np.array(sorted(bounds)[:-1])  # all bytes from one start to the next are equivalent
        self._class_of = {low: i for i, low in enumerate(sorted(bounds))}
        self._tables = {key: table[:, self._class_starts] for key, table in table_of.items()}
        self._closures: dict[int, frozenset[int]] = {}
        self._number: dict[frozenset[int], int] = {}
        self._first_of_block: dict[int, int] = {}  # number of each block's first state
        self._count = 0
        self._pending: list[frozenset[int] | int] = []  # sets of states, and blocks, without rows so far
        self._rows: list[tuple[int, Int[np.ndarray, "n c"]]] = []  # each with the number of its first state
        self._final: list[int] = []

    def automaton(self, start: int) -> ByteAutomaton:
        first = self._number_of(self._closure((start,)))
        while self._pending:
            subset_or_block = self._pending.pop()
            self._expand(subset_or_block) if isinstance(subset_or_block, frozenset) else self._expand_block(
                subset_or_block
            )
            if self._count > 2 * MAX_STATES or time.monotonic() > self._deadline:
                raise too_large(self._subject)
        table, final = np.full((self._count, len(self._class_starts)), -1, np.int32), np.zeros(self._count, bool)
        for number, rows in self._rows:
            table[number : number + len(rows)] = rows
        final[self._final] = True
        return minimize(
            table, final, first, self._subject, np.searchsorted(self._class_starts, np.arange(256), side="right") - 1
        )

    def _closure(self, states: Iterable[int]) -> frozenset[int]:
        """Returns the epsilon closure of some states, without states that no byte leaves."""
        return frozenset().union(*(self._closures.get(state) or self._close(state) for state in states))

    def _close(self, state: int) -> frozenset[int]:
        reached, stack = {state}, [state]
        while stack:
            for next_state in self._builder.epsilon_edges[stack.pop()]:
                if next_state not in reached:
                    reached.add(next_state)
                    stack.append(next_state)
        closure = frozenset(
            member
            for member in reached
            if member == self._end or self._builder.edges[member] or self._has_block_edges(member)
        )
        self._closures[state] = closure
        return closure

    def _has_block_edges(self, state: int) -> bool:
        block = self._builder.block_of[state]
        if block < 0:
            return False
        automaton, first = self._builder.blocks[block]
        return bool((automaton.next[state - first] >= 0).any())

    def _number_of(self, states: frozenset[int]) -> int:
        if len(states) == 1:
            (state,) = states
            block = self._builder.block_of[state]
            if block >= 0 and not self._builder.epsilon_edges[state]:
                return self._number_of_block(block) + state - self._builder.blocks[block][1]
        if states not in self._number:
            self._number[states] = self._count
            self._count += 1
            self._pending.append(states)
        return self._number[states]

    def _number_of_block(self, block: int) -> int:
        if block not in self._first_of_block:
            self._first_of_block[block] = self._count
            self._count += len(self._builder.blocks[block][0].final)
            self._pending.append(block)
        return self._first_of_block[block]

    def _expand_block(self, block: int) -> None:
        automaton, first = self._builder.blocks[block]
        number = np.append(np.arange(len(automaton.final), dtype=np.int32) + self._first_of_block[block], -1)
        for state in np.flatnonzero(automaton.final).tolist():
            number[state] = self._number_of(self._closure((first + state,)))
        self._rows.append((self._first_of_block[block], number[self._tables[id(automaton)]]))

    def _expand(self, states: frozenset[int]) -> None:
        targets: dict[int, list[int]] = {}
        for state in sorted(states):
            block = self._builder.block_of[state]
            if block >= 0:
                automaton, first = self._builder.blocks[block]
                for byte_class, target in enumerate(self._tables[id(automaton)][state - first].tolist()):
                    if target >= 0:
                        targets.setdefault(byte_class, []).append(first + target)
            for low, high, target in self._builder.edges[state]:
                for byte_class in range(self._class_of[low], self._class_of[high + 1]):
                    targets.setdefault(byte_class, []).append(target)
        row = np.full((1, len(self._class_starts)), -1, np.int32)
        reached = {tuple(target): 0 for target in targets.values()}
        for target in reached:
            reached[target] = self._number_of(self._closure(target))
        for byte_class, target in targets.items():
            row[0, byte_class] = reached[tuple(target)]
        self._rows.append((self._number[states], row))
        if self._end in states:
            self._final.append(self._number[states])
