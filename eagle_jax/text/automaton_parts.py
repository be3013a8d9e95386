"""Automata put together of parts: texts, alternatives, repetitions, lists.

A part adds its states behind a given one and returns the one in which it is complete (Thompson 1968): nothing leads
into the first of them, nor out of the last, but what others add.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from eagle_jax.text.byte_automaton import MOST_STATES, SECONDS, ByteAutomaton, smallest, too_large

Part = Callable[["Builder", int], int]
MOST_PARTS = 400_000  # states before equal ones are merged


class Builder:
    """An automaton that is being put together."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []  # of each state: lowest byte, highest byte, next state
        self.skips: list[list[int]] = []  # of each state: those that it is at once

    def state(self) -> int:
        if len(self.edges) >= MOST_PARTS:
            raise too_large("this schema")
        self.edges.append([])
        self.skips.append([])
        return len(self.edges) - 1


def automaton_of(part: Part, what: str) -> ByteAutomaton:
    """The deterministic automaton of a part (subset construction).

    Raises:
        ValueError: it is too large.
    """
    builder, until = Builder(), time.monotonic() + SECONDS
    start = builder.state()
    end = part(builder, start)
    bounds = {0, 256} | {bound for edges in builder.edges for low, high, _ in edges for bound in (low, high + 1)}
    lows = np.array(sorted(bounds)[:-1])  # bytes between two bounds do the same
    class_of = {low: i for i, low in enumerate([*lows.tolist(), 256])}

    def closure(states: Sequence[int]) -> frozenset[int]:
        found, open_ = set(states), list(states)
        while open_:
            for state in builder.skips[open_.pop()]:
                if state not in found:
                    found.add(state)
                    open_.append(state)
        return frozenset(state for state in found if builder.edges[state] or state == end)

    number = {closure([start]): 0}
    rows: list[np.ndarray] = []
    for states in (queue := list(number)):
        to: dict[int, list[int]] = {}
        for state in states:
            for low, high, following in builder.edges[state]:
                for byte_class in range(class_of[low], class_of[high + 1]):
                    to.setdefault(byte_class, []).append(following)
        row = np.full(len(lows), -1)
        for byte_class, reached in to.items():
            key = closure(reached)
            if key not in number:
                number[key] = len(number)
                queue.append(key)
            row[byte_class] = number[key]
        rows.append(row)
        if len(number) > MOST_STATES or time.monotonic() > until:
            raise too_large(what)
    by_byte = np.stack(rows)[:, np.searchsorted(lows, np.arange(256), side="right") - 1]
    return smallest(by_byte, np.array([end in states for states in queue]), 0)


def literal(text: str | bytes) -> Part:
    """This text alone."""
    return sequence(*(one_of((byte, byte)) for byte in (text.encode() if isinstance(text, str) else text)))


def one_of(*ranges: tuple[int, int]) -> Part:
    """One byte from ranges, their ends included."""

    def add(builder: Builder, start: int) -> int:
        end = builder.state()
        builder.edges[start] += [(low, high, end) for low, high in ranges]
        return end

    return add


def sequence(*parts: Part) -> Part:
    """One after another."""

    def add(builder: Builder, start: int) -> int:
        for part in parts:
            start = part(builder, start)
        return start

    return add


def either(*parts: Part) -> Part:
    """Any one of them."""

    def add(builder: Builder, start: int) -> int:
        end = builder.state()
        for part in parts:
            own = builder.state()
            builder.skips[start].append(own)
            builder.skips[part(builder, own)].append(end)
        return end

    return add


def optional(part: Part) -> Part:
    """It or nothing."""
    return either(part, sequence())


def repeated(part: Part, least: int = 0, most: int | None = None, separator: Part | None = None) -> Part:
    """It `least` to `most` times, with a separator between; `most` None is any number of times."""

    def add(builder: Builder, start: int) -> int:
        end, before = builder.state(), start  # a fresh last state: nothing leads out of it
        bounded = max(least, 1) if most is None else most
        if least == 0:
            builder.skips[start].append(end)
        for count in range(1, bounded + 1):
            begin = builder.state()
            if count > 1 and separator is not None:
                builder.skips[separator(builder, before)].append(begin)
            else:
                builder.skips[before].append(begin)
            before = part(builder, begin)
            if count >= least:
                builder.skips[before].append(end)
        if most is None:
            again = builder.state()
            builder.skips[before].append(again)
            builder.skips[again if separator is None else separator(builder, again)].append(begin)
        return end

    return add


def in_order(parts: Sequence[Part], required: Sequence[bool], separator: Part) -> Part:
    """Those that are required and any of the others, in their order, with a separator between."""

    def add(builder: Builder, start: int) -> int:
        first, later = builder.state(), builder.state()  # where nothing stands before, and where something does
        builder.skips[start].append(first)
        for part, is_required in zip(parts, required, strict=True):
            begin, then = builder.state(), builder.state()
            builder.skips[first].append(begin)
            behind = builder.state()
            builder.skips[later].append(behind)
            builder.skips[separator(builder, behind)].append(begin)
            builder.skips[part(builder, begin)].append(then)
            first_then = builder.state()
            if not is_required:
                builder.skips[first].append(first_then)
                builder.skips[later].append(then)
            first, later = first_then, then
        end = builder.state()
        builder.skips[first].append(end)
        builder.skips[later].append(end)
        return end

    return add


def automaton(made: ByteAutomaton) -> Part:
    """The texts of an automaton."""

    def add(builder: Builder, start: int) -> int:
        states = [builder.state() for _ in made.final]
        end = builder.state()
        builder.skips[start].append(states[0])
        for state, row, is_final in zip(states, made.next, made.final, strict=True):
            cuts = np.flatnonzero(np.diff(row)) + 1
            for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), 256], strict=True):
                if row[low] >= 0:
                    builder.edges[state].append((low, high - 1, states[row[low]]))
            if is_final:
                builder.skips[state].append(end)
        return end

    return add
