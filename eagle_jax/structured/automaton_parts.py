"""Parts of automata: texts, alternatives, repetitions, lists.

A part adds its states after a given one and returns the one in which it is complete (Thompson 1968): nothing leads
into the first of them, nor out of the last, but what others add. The functions within have no annotations: the tests'
checker would take a millisecond for each of thousands of parts.
"""

from collections.abc import Sequence

from eagle_jax.structured.automaton_builder import Part
from eagle_jax.structured.byte_automaton import ByteAutomaton


def literal(text: str | bytes) -> Part:
    """Matches this text alone."""
    return sequence(*(one_of((byte, byte)) for byte in (text.encode() if isinstance(text, str) else text)))


def one_of(*ranges: tuple[int, int]) -> Part:
    """Matches one byte from ranges, their ends included."""

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
    """Matches any one of them."""

    def add(builder, start):
        end = builder.state()
        for part in parts:
            branch = builder.state()
            builder.skips[start].append(branch)
            builder.skips[part(builder, branch)].append(end)
        return end

    return add


def optional(part: Part) -> Part:
    """Matches the part or nothing."""
    return either(part, sequence())


def repeated(part: Part, least: int = 0, most: int | None = None, separator: Part | None = None) -> Part:
    """Matches the part `least` to `most` times, with a separator between; `most` None is any number of times."""

    def add(builder, start):
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


def in_order(parts: Sequence[Part], required: Sequence[bool], separator: Part, *, least: int = 0) -> Part:
    """Matches all required parts and any others, in order, with a separator between; one at least if `least` is 1."""

    def add(builder, start):
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
        builder.skips[later].append(end)
        if not least:
            builder.skips[first].append(end)
        return end

    return add


def selection(parts: Sequence[Part], least: int, most: int, separator: Part) -> Part:
    """Matches `least` to `most` of the parts, each at most once, in any order, with a separator between."""

    def add(builder, start):
        end, behind = builder.state(), {frozenset[int](): start}  # states, by those that were chosen before
        open_ = [*behind]
        for chosen in open_:
            place = behind[chosen]
            if len(chosen) >= least:
                builder.skips[place].append(end)
            if len(chosen) == most:
                continue
            place = separator(builder, place) if chosen else place
            for number in set(range(len(parts))) - chosen:
                begin = builder.state()
                builder.skips[place].append(begin)
                more = chosen | {number}
                if more not in behind:
                    behind[more] = builder.state()
                    open_.append(more)
                builder.skips[parts[number](builder, begin)].append(behind[more])
        return end

    return add


def automaton(dfa: ByteAutomaton) -> Part:
    """Matches the texts of an automaton."""

    def add(builder, start):
        end = builder.state()
        builder.skips[start].append(builder.block(dfa, end))
        return end

    return add
