"""Deterministic finite automata over bytes: exploration of transition rules, intersection, minimization."""

import collections
import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int, Shaped

MAX_STATES = 20_000
MEMORY, SECONDS = 2**30, 20.0  # limits of building one automaton

State = TypeVar("State", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
    """A deterministic automaton whose first state is 0.

    Attributes:
        next: next state for each byte; -1 if the byte is not allowed.
        final: whether the text may end in each state.
    """

    next: Int[np.ndarray, "s 256"]
    final: Bool[np.ndarray, "s"]

    def accepts(self, text: bytes) -> bool:
        """Returns whether the automaton accepts the whole text."""
        state = 0
        for byte in text:
            state = int(self.next[state, byte])
            if state < 0:
                return False
        return bool(self.final[state])


class TooLarge(ValueError):
    """An automaton has too many states, or takes too long to build."""


def too_large(subject: str) -> TooLarge:
    """Returns the error about an automaton that is too large."""
    return TooLarge(
        f"the automaton of {subject} is too large (more than {MAX_STATES:,} states, {SECONDS:g} s or 1 GiB to build); "
        "use smaller counts, or fewer wildcards before other text"
    )


def explore(
    start: State,
    steps: Callable[[State], Iterable[tuple[int, int, State]]],
    is_final: Callable[[State], bool],
    subject: str,
) -> ByteAutomaton:
    """Builds the automaton of all reachable states, without merging equivalent ones.

    Args:
        steps: yields the edges of a state: lowest byte, highest byte, next state.

    Raises:
        ValueError: there are too many states.
    """
    number_of, states = {start: 0}, [start]
    rows: list[np.ndarray] = []
    for state in states:
        row = np.full(256, -1, np.int32)
        for low, high, target in steps(state):
            if target not in number_of:
                number_of[target] = len(states)
                states.append(target)
            row[low : high + 1] = number_of[target]
        rows.append(row)
        if len(states) > MAX_STATES:
            raise too_large(subject)
    return ByteAutomaton(np.stack(rows), np.array([is_final(state) for state in states]))


def intersection(first: ByteAutomaton, second: ByteAutomaton, subject: str, *, without: bool = False) -> ByteAutomaton:
    """Returns the automaton of texts that both accept, or with `without` only the first. Raises as `explore`."""
    changes = np.any(np.diff(np.concatenate([first.next, second.next]), axis=1), axis=0)
    class_starts = np.flatnonzero(np.append(True, changes))  # all bytes from one start to the next are equivalent
    class_ends = [*(class_starts[1:] - 1).tolist(), 255]
    first_rows, second_rows = first.next[:, class_starts].tolist(), second.next[:, class_starts].tolist()
    second_rows.append([-1] * len(class_starts))  # row -1: `second` has rejected the text

    def steps(pair: tuple[int, int]) -> Iterable[tuple[int, int, tuple[int, int]]]:
        for low, high, first_target, second_target in zip(
            class_starts.tolist(), class_ends, first_rows[pair[0]], second_rows[pair[1]], strict=True
        ):
            if first_target >= 0 and (second_target >= 0 or without):
                yield low, high, (first_target, second_target)

    def is_final(pair: tuple[int, int]) -> bool:
        in_second = pair[1] >= 0 and bool(second.final[pair[1]])
        return bool(first.final[pair[0]]) and in_second is not without

    return explore((0, 0), steps, is_final, subject)


def minimize(
    transitions: Int[np.ndarray, "s c"],
    final: Bool[np.ndarray, "s"],
    start: int,
    subject: str,
    class_of_byte: Int[np.ndarray, "256"] | None = None,
) -> ByteAutomaton:
    """Minimizes an automaton: merges equivalent states, and drops those from which no final state can be reached.

    Args:
        subject: description of the automaton, for error messages.
        class_of_byte: column of each byte; None if every byte has its own.

    Raises:
        ValueError: it has too many states.
    """
    columns, column_of = distinct_columns(transitions)
    class_of_byte = column_of if class_of_byte is None else column_of[class_of_byte]
    columns = drop_dead_edges(columns, final)
    group = _equivalent(columns, final)
    _, first = np.unique(group, return_index=True)
    merged = np.where(columns >= 0, group[columns], -1)[first]
    reachable = _reachable(merged, int(group[start]))
    if len(reachable) > MAX_STATES:
        raise too_large(subject)
    new_number = np.full(len(merged) + 1, -1, np.int32)
    new_number[reachable] = np.arange(len(reachable), dtype=np.int32)
    return ByteAutomaton(new_number[merged[reachable]][:, class_of_byte], final[first][reachable])


def distinct_columns(table: Shaped[np.ndarray, "s c"]) -> tuple[Shaped[np.ndarray, "s d"], Int[np.ndarray, "c"]]:
    """Returns the distinct columns, and the index among them of each column."""
    index_of: dict[bytes, int] = {}
    transposed = np.ascontiguousarray(table.T)
    column_of = np.array([index_of.setdefault(column.tobytes(), len(index_of)) for column in transposed], np.int64)
    _, first = np.unique(column_of, return_index=True)
    return np.ascontiguousarray(transposed[first].T), column_of


def drop_dead_edges(transitions: Int[np.ndarray, "s c"], final: Bool[np.ndarray, "s"]) -> Int[np.ndarray, "s c"]:
    """Removes the edges from which no final state can be reached."""
    predecessors = _predecessors(transitions)
    alive, stack = final.copy(), np.flatnonzero(final).tolist()
    while stack:
        for state in predecessors(stack.pop()):
            if not alive[state]:
                alive[state] = True
                stack.append(state)
    return np.where((transitions >= 0) & alive[transitions], transitions, -1)


def _predecessors(transitions: Int[np.ndarray, "s c"]) -> Callable[[int], list[int]]:
    """Returns a function that gives the predecessors of a state."""
    count = len(transitions)
    states, classes = np.nonzero(transitions >= 0)
    edges = np.unique(transitions[states, classes].astype(np.int64) * count + states)
    targets, sources = np.divmod(edges, count)
    bounds = np.searchsorted(targets, np.arange(count + 1)).tolist()
    source_list = sources.tolist()
    return lambda state: source_list[bounds[state] : bounds[state + 1]]


def _equivalent(columns: Int[np.ndarray, "s c"], final: Bool[np.ndarray, "s"]) -> Int[np.ndarray, "s"]:
    """Returns the number of each state's equivalence class.

    Groups are split until all states of one lead to the same groups (Moore 1956). Each iteration looks only at states
    that lead into a group split off in the iteration before, and the largest part of a group keeps its number
    (Hopcroft 1971), so long chains, which need an iteration for each state, take no longer than others.
    """
    count, predecessors = len(final), _predecessors(columns)
    if columns.shape[1] == 1:  # itemgetter returns tuples only for several columns
        columns = np.repeat(columns, 2, axis=1)
    rows = [operator.itemgetter(*row) for row in columns.tolist()]
    group = [*final.astype(int).tolist(), -1]  # the last entry stands for "no edge", -1
    members: dict[int, set[int]] = collections.defaultdict(set)
    for state in range(count):
        members[group[state]].add(state)
    num_groups, changed = 2, set(range(count))
    while changed:
        parts: dict[int, dict[tuple[int, ...], list[int]]] = collections.defaultdict(dict)
        for state in changed:
            if len(members[group[state]]) > 1:
                parts[group[state]].setdefault(rows[state](group), []).append(state)
        moved: list[tuple[int, list[int]]] = []
        for number, by_signature in parts.items():
            for part in _split(members[number], by_signature, lambda state: rows[state](group)):
                members[number].difference_update(part)
                members[num_groups] = set(part)
                moved.append((num_groups, part))
                num_groups += 1
        for number, part in moved:
            for state in part:
                group[state] = number
        changed = {predecessor for _, part in moved for state in part for predecessor in predecessors(state)}
    return np.array(group[:-1], np.int64)


def _split(
    group: set[int], parts: dict[tuple[int, ...], list[int]], signature: Callable[[int], tuple[int, ...]]
) -> list[list[int]]:
    """Returns all parts of a group but the largest. States that are not in `parts` all lead to the same groups."""
    examined = {state for part in parts.values() for state in part}
    if len(examined) < len(group):
        unexamined_signature = signature(next(state for state in group if state not in examined))
        num_unmoved = len(group) - len(examined) + len(parts.get(unexamined_signature, ()))
        if num_unmoved >= max(map(len, parts.values())):
            return [part for key, part in parts.items() if key != unexamined_signature]
        parts.setdefault(unexamined_signature, []).extend(group - examined)
    largest = max(parts, key=lambda key: len(parts[key]))
    return [part for key, part in parts.items() if key != largest]


def _reachable(transitions: Int[np.ndarray, "s c"], start: int) -> list[int]:
    """Returns the reachable states, `start` first."""
    order, reached, rows = [start], {start, -1}, transitions.tolist()
    for state in order:
        for target in rows[state]:
            if target not in reached:
                reached.add(target)
                order.append(target)
    return order
