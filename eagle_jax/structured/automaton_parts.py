"""Parts of automata: texts, alternatives, repetitions, lists.

A part adds its states after a given one and returns the state in which it is complete (Thompson 1968). A part adds no
edges into its first state or out of its last one. Inner functions have no annotations: the type checker of the tests
would take a millisecond for each of thousands of parts.
"""

from collections.abc import Sequence

from eagle_jax.structured.automaton_builder import Part
from eagle_jax.structured.byte_automaton import ByteAutomaton


def literal(text: str | bytes) -> Part:
    """Matches exactly this text."""
    return sequence(*(one_of((byte, byte)) for byte in (text.encode() if isinstance(text, str) else text)))


def one_of(*ranges: tuple[int, int]) -> Part:
    """Matches one byte of the ranges, both ends included."""

    def add(builder, start):
        end = builder.state()
        builder.edges[start] += [(low, high, end) for low, high in ranges]
        return end

    return add


def sequence(*parts: Part) -> Part:
    """Matches parts one after another."""

    def add(builder, start):
        for part in parts:
            start = part(builder, start)
        return start

    return add


def either(*parts: Part) -> Part:
    """Matches any one of the parts."""

    def add(builder, start):
        end = builder.state()
        for part in parts:
            branch = builder.state()
            builder.epsilon_edges[start].append(branch)
            builder.epsilon_edges[part(builder, branch)].append(end)
        return end

    return add


def optional(part: Part) -> Part:
    """Matches the part or nothing."""
    return either(part, sequence())


def repeat(part: Part, min_count: int = 0, max_count: int | None = None, separator: Part | None = None) -> Part:
    """Matches `min_count` to `max_count` repetitions with a separator between them; None is no maximum."""

    def add(builder, start):
        end, before = builder.state(), start
        bounded = max(min_count, 1) if max_count is None else max_count
        if min_count == 0:
            builder.epsilon_edges[start].append(end)
        for count in range(1, bounded + 1):
            begin = builder.state()
            if count > 1 and separator is not None:
                builder.epsilon_edges[separator(builder, before)].append(begin)
            else:
                builder.epsilon_edges[before].append(begin)
            before = part(builder, begin)
            if count >= min_count:
                builder.epsilon_edges[before].append(end)
        if max_count is None:
            again = builder.state()
            builder.epsilon_edges[before].append(again)
            builder.epsilon_edges[again if separator is None else separator(builder, again)].append(begin)
        return end

    return add


def in_order(parts: Sequence[Part], required: Sequence[bool], separator: Part, *, min_count: int = 0) -> Part:
    """Matches the required and any optional parts, in order, separated; at least one if `min_count` is 1."""

    def add(builder, start):
        first, later = builder.state(), builder.state()  # before and after the first part that is present
        builder.epsilon_edges[start].append(first)
        for part, is_required in zip(parts, required, strict=True):
            begin, done = builder.state(), builder.state()
            builder.epsilon_edges[first].append(begin)
            after_separator = builder.state()
            builder.epsilon_edges[later].append(after_separator)
            builder.epsilon_edges[separator(builder, after_separator)].append(begin)
            builder.epsilon_edges[part(builder, begin)].append(done)
            next_first = builder.state()
            if not is_required:
                builder.epsilon_edges[first].append(next_first)
                builder.epsilon_edges[later].append(done)
            first, later = next_first, done
        end = builder.state()
        builder.epsilon_edges[later].append(end)
        if not min_count:
            builder.epsilon_edges[first].append(end)
        return end

    return add


def selection(parts: Sequence[Part], min_count: int, max_count: int, separator: Part) -> Part:
    """Matches `min_count` to `max_count` of the parts, each at most once, in any order, separated."""

    def add(builder, start):
        end, state_after = builder.state(), {frozenset[int](): start}  # state after each set of chosen parts
        pending = [*state_after]
        for chosen in pending:
            state = state_after[chosen]
            if len(chosen) >= min_count:
                builder.epsilon_edges[state].append(end)
            if len(chosen) == max_count:
                continue
            state = separator(builder, state) if chosen else state
            for number in set(range(len(parts))) - chosen:
                begin = builder.state()
                builder.epsilon_edges[state].append(begin)
                extended = chosen | {number}
                if extended not in state_after:
                    state_after[extended] = builder.state()
                    pending.append(extended)
                builder.epsilon_edges[parts[number](builder, begin)].append(state_after[extended])
        return end

    return add


def automaton(dfa: ByteAutomaton) -> Part:
    """Matches the texts of an automaton."""

    def add(builder, start):
        end = builder.state()
        builder.epsilon_edges[start].append(builder.block(dfa, end))
        return end

    return add
