"""Deterministic finite automata over bytes: exploration of transition rules, intersection, minimization."""

import collections
import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int, Shaped

MOST_STATES = 20_000
MEMORY, SECONDS = 2**30, 20.0  # that building one may take

State = TypeVar("State", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
    """A deterministic automaton whose first state is 0.

    Attributes:
        next: the state after a byte; -1 where no text goes on with it.
        final: states in which the text is complete.
    """

    next: Int[np.ndarray, "s 256"]
    final: Bool[np.ndarray, "s"]

    def accepts(self, text: bytes) -> bool:
        """Returns whether this text is complete in it."""
        state = 0
        for byte in text:
            state = int(self.next[state, byte])
            if state < 0:
                return False
        return bool(self.final[state])


class TooLarge(ValueError):
    """An automaton has too many states, or takes too long to make."""


def too_large(subject: str) -> TooLarge:
    """Returns the error about an automaton that is too large."""
    return TooLarge(
        f"the automaton of {subject} is too large (more than {MOST_STATES:,} states, {SECONDS:g} s or 1 GiB to build); "
        "use smaller counts, or fewer wildcards before other text"
    )


def explored(
    start: State,
    steps: Callable[[State], Iterable[tuple[int, int, State]]],
    is_final: Callable[[State], bool],
    subject: str,
) -> ByteAutomaton:
    """Builds the automaton of all states that `steps` reaches; equivalent ones are not merged.

    Args:
        steps: what follows a state: lowest byte, highest byte, next state.

    Raises:
        ValueError: there are too many states.
    """
    number, order = {start: 0}, [start]
    rows: list[np.ndarray] = []
    for state in order:
        row = np.full(256, -1, np.int32)
        for low, high, following in steps(state):
            if following not in number:
                number[following] = len(order)
                order.append(following)
            row[low : high + 1] = number[following]
        rows.append(row)
        if len(order) > MOST_STATES:
            raise too_large(subject)
    return ByteAutomaton(np.stack(rows), np.array([is_final(state) for state in order]))


def intersection(one: ByteAutomaton, other: ByteAutomaton, subject: str, *, without: bool = False) -> ByteAutomaton:
    """Returns the texts of both; with `without`, those of `one` that are not of the other. Raises as `explored`."""
    changes = np.any(np.diff(np.concatenate([one.next, other.next]), axis=1), axis=0)
    lows = np.flatnonzero(np.append(True, changes))  # bytes from one to the next do the same
    highs = [*(lows[1:] - 1).tolist(), 255]
    rows, other_rows = one.next[:, lows].tolist(), other.next[:, lows].tolist()
    other_rows.append([-1] * len(lows))  # of -1, from where no text of the other one leads on

    def steps(pair: tuple[int, int]) -> Iterable[tuple[int, int, tuple[int, int]]]:
        for low, high, to, other_to in zip(lows.tolist(), highs, rows[pair[0]], other_rows[pair[1]], strict=True):
            if to >= 0 and (other_to >= 0 or without):
                yield low, high, (to, other_to)

    def is_final(pair: tuple[int, int]) -> bool:
        in_other = pair[1] >= 0 and bool(other.final[pair[1]])
        return bool(one.final[pair[0]]) and in_other is not without

    return explored((0, 0), steps, is_final, subject)


def smallest(
    following: Int[np.ndarray, "s c"],
    final: Bool[np.ndarray, "s"],
    start: int,
    subject: str,
    class_of_byte: Int[np.ndarray, "256"] | None = None,
) -> ByteAutomaton:
    """Minimizes an automaton: merges equivalent states, and drops those from which no text is complete.

    Args:
        subject: the place of the form, as errors say it.
        class_of_byte: the column of each byte; None where there is one for each.

    Raises:
        ValueError: it has too many states.
    """
    columns, same = distinct_columns(following)
    class_of_byte = same if class_of_byte is None else same[class_of_byte]
    columns = leading_on(columns, final)
    group = _equivalent(columns, final)
    _, first = np.unique(group, return_index=True)
    merged = np.where(columns >= 0, group[columns], -1)[first]
    order = _reachable(merged, int(group[start]))
    if len(order) > MOST_STATES:
        raise too_large(subject)
    place = np.full(len(merged) + 1, -1, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return ByteAutomaton(place[merged[order]][:, class_of_byte], final[first][order])


def distinct_columns(table: Shaped[np.ndarray, "s c"]) -> tuple[Shaped[np.ndarray, "s d"], Int[np.ndarray, "c"]]:
    """Returns the columns that differ, and which of them each column is."""
    number: dict[bytes, int] = {}
    transposed = np.ascontiguousarray(table.T)
    which = np.array([number.setdefault(column.tobytes(), len(number)) for column in transposed], np.int64)
    _, first = np.unique(which, return_index=True)
    return np.ascontiguousarray(transposed[first].T), which


def leading_on(following: Int[np.ndarray, "s c"], final: Bool[np.ndarray, "s"]) -> Int[np.ndarray, "s c"]:
    """Removes the edges after which nothing is complete any more."""
    before = _predecessors(following)
    alive, open_ = final.copy(), np.flatnonzero(final).tolist()
    while open_:
        for state in before(open_.pop()):
            if not alive[state]:
                alive[state] = True
                open_.append(state)
    return np.where((following >= 0) & alive[following], following, -1)


def _predecessors(following: Int[np.ndarray, "s c"]) -> Callable[[int], list[int]]:
    """Returns the states that lead to each state."""
    count = len(following)
    states, classes = np.nonzero(following >= 0)
    edges = np.unique(following[states, classes].astype(np.int64) * count + states)
    to, before = np.divmod(edges, count)
    bounds = np.searchsorted(to, np.arange(count + 1)).tolist()
    before_list = before.tolist()
    return lambda state: before_list[bounds[state] : bounds[state + 1]]


def _equivalent(columns: Int[np.ndarray, "s c"], final: Bool[np.ndarray, "s"]) -> Int[np.ndarray, "s"]:
    """Groups equivalent states: the number of each state's group.

    Groups are split until all states of one lead to the same groups (Moore 1956). A round looks only at states that
    lead into a group which was split off in the round before, and the largest part of a group keeps its number
    (Hopcroft 1971): long chains, which need a round for each state, take no longer than others.
    """
    count, before = len(final), _predecessors(columns)
    if columns.shape[1] == 1:  # or the getters below would give no tuples
        columns = np.repeat(columns, 2, axis=1)
    rows = [operator.itemgetter(*row) for row in columns.tolist()]
    group = [*final.astype(int).tolist(), -1]  # the last one is that of no state, -1
    members: dict[int, set[int]] = collections.defaultdict(set)
    for state in range(count):
        members[group[state]].add(state)
    fresh, open_ = 2, set(range(count))
    while open_:
        parts: dict[int, dict[tuple[int, ...], list[int]]] = collections.defaultdict(dict)
        for state in open_:
            if len(members[group[state]]) > 1:
                parts[group[state]].setdefault(rows[state](group), []).append(state)
        moved: list[tuple[int, list[int]]] = []
        for number, by_signature in parts.items():
            for part in _split(members[number], by_signature, lambda state: rows[state](group)):
                members[number].difference_update(part)
                members[fresh] = set(part)
                moved.append((fresh, part))
                fresh += 1
        for number, part in moved:
            for state in part:
                group[state] = number
        open_ = {other for _, part in moved for state in part for other in before(state)}
    return np.array(group[:-1], np.int64)


def _split(
    group: set[int], parts: dict[tuple[int, ...], list[int]], signature: Callable[[int], tuple[int, ...]]
) -> list[list[int]]:
    """Returns the parts that leave a group: all but the largest. States not in `parts` lead to the same groups."""
    looked_at = {state for part in parts.values() for state in part}
    if len(looked_at) < len(group):
        like = signature(next(state for state in group if state not in looked_at))
        rest = len(group) - len(looked_at) + len(parts.get(like, ()))
        if rest >= max(map(len, parts.values())):
            return [part for other, part in parts.items() if other != like]
        parts.setdefault(like, []).extend(group - looked_at)
    largest = max(parts, key=lambda other: len(parts[other]))
    return [part for other, part in parts.items() if other != largest]


def _reachable(following: Int[np.ndarray, "s c"], start: int) -> list[int]:
    """States that can be reached, the first one first."""
    order, reached, rows = [start], {start, -1}, following.tolist()
    for state in order:
        for to in rows[state]:
            if to not in reached:
                reached.add(to)
                order.append(to)
    return order
