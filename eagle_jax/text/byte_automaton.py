"""Finite automata over bytes: made smallest, and made of regular expressions."""

import dataclasses
import functools
import io
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from eagle_jax.text import regex_edges

MOST_STATES = 20_000
MEMORY, SECONDS = 2**30, 20.0  # that building one may take
ROUNDS = 400  # of looking for states that do the same

# Of alternatives outlines-core follows the first that is complete: of "a|ab" never the second. What is complete with
# this behind it alone is not cut short. No text has it: U+10FFFF is not a character.
END = "\U0010ffff"


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
    """A deterministic automaton whose first state is 0.

    Attributes:
        next: the state after a byte; -1 where no text goes on with it.
        final: states in which the text is complete.
    """

    next: Int[np.ndarray, "s 256"]
    final: Bool[np.ndarray, "s"]


@functools.lru_cache(maxsize=256)
def own_automaton(regex: str) -> ByteAutomaton:
    """The automaton of an expression of this package, which is known to be small."""
    return regex_automaton(regex, is_trusted=True)


def regex_automaton(regex: str, *, is_trusted: bool = False) -> ByteAutomaton:
    """The automaton of the texts that a regular expression matches as a whole, in UTF-8.

    The syntax is that of Rust's `regex`, without anchors inside, look-around, word boundaries and back references.

    Args:
        is_trusted: it is known to be small; others are built in a process of their own.

    Raises:
        ValueError: the expression is not one, or its automaton is too large.
        ImportError: outlines-core is not installed.
    """
    try:
        import outlines_core  # noqa: F401
    except ImportError:
        raise ImportError('structured output needs outlines-core: pip install "eagle-jax[structured]"') from None
    whole = f"(?:{_without_anchors(regex)}){END}"
    found = regex_edges.edges_of(whole) if is_trusted else _in_a_process(whole, regex)
    edges = found["edges"]
    states = np.unique(np.concatenate([edges[:, 0], edges[:, 2], found["final"], found["start"]]))
    if len(states) > MOST_STATES:
        raise too_large(repr(_short(regex)))
    following = np.full((len(states), 256), -1, np.int64)
    following[np.searchsorted(states, edges[:, 0]), edges[:, 1]] = np.searchsorted(states, edges[:, 2])
    reached = np.arange(len(states))
    for byte in END.encode():
        reached = np.where(reached >= 0, following[reached, byte], -1)
    final = (reached >= 0) & np.isin(states, found["final"])[reached]
    return smallest(following, final, int(np.searchsorted(states, found["start"][0])))


def _without_anchors(regex: str) -> str:
    """The expression without `^` before it and `$` behind it, which say what is meant anyway."""
    is_escaped = (len(regex) - len(regex[:-1].rstrip("\\"))) % 2 == 0
    regex = regex[:-1] if regex.endswith("$") and not is_escaped else regex
    return regex.removeprefix("^")


def _in_a_process(whole: str, regex: str) -> Mapping[str, np.ndarray]:
    command = [sys.executable, "-I", regex_edges.__file__, str(MEMORY)]
    try:
        done = subprocess.run(command, input=whole.encode(), capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise too_large(repr(_short(regex))) from None
    if done.returncode == 3:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise ValueError(
            f"the regular expression {_short(regex)!r} cannot be followed ({reason[:200]}); expected the syntax of "
            "Rust's regex, to match the whole text: without anchors inside, look-around, word boundaries and back "
            "references"
        )
    if done.returncode:
        raise too_large(repr(_short(regex)))
    return dict(np.load(io.BytesIO(done.stdout), allow_pickle=False))


def too_large(what: str) -> ValueError:
    """The error about an automaton that is too large."""
    return ValueError(
        f"the automaton of {what} is too large (more than {MOST_STATES:,} states, {SECONDS:g} s or 1 GiB to build); "
        "use smaller counts, or fewer wildcards before other text"
    )


def _short(regex: str) -> str:
    return regex if len(regex) <= 60 else regex[:57] + "..."


def smallest(following: Int[np.ndarray, "s 256"], final: Bool[np.ndarray, "s"], start: int) -> ByteAutomaton:
    """The automaton without states that do the same as others, or from which nothing is complete (Moore 1956)."""
    following = leading_on(following, final)
    group, first = _equivalent(following, final)
    merged = np.where(following >= 0, group[following], -1)[first]
    order = _reachable(merged, int(group[start]))
    place = np.full(len(merged) + 1, -1, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return ByteAutomaton(place[merged[order]], final[first][order])


def leading_on(following: Int[np.ndarray, "s c"], final: Bool[np.ndarray, "s"]) -> Int[np.ndarray, "s c"]:
    """Without the edges after which nothing is complete any more."""
    columns = np.unique(following, axis=1)  # bytes that do the same in all states count once
    states, classes = np.nonzero(columns >= 0)
    to = columns[states, classes]
    order = np.argsort(to, kind="stable")
    before, to = states[order], to[order]  # the states before each state stand together
    alive, reached = final.copy(), np.flatnonzero(final)
    while len(reached):
        first, last = np.searchsorted(to, reached, "left"), np.searchsorted(to, reached, "right")
        found = np.unique(np.concatenate([before[low:high] for low, high in zip(first, last, strict=True)]))
        reached = found[~alive[found]]
        alive[reached] = True
    return np.where((following >= 0) & alive[following], following, -1)


def _equivalent(
    following: Int[np.ndarray, "s c"], final: Bool[np.ndarray, "s"]
) -> tuple[Int[np.ndarray, "s"], Int[np.ndarray, "t"]]:
    """The group of each state, and one state of each group. Long chains, which take a round for each state, keep
    their states.
    """
    columns = np.unique(following, axis=1)  # bytes that do the same in all states count once
    _, first, group = np.unique(final, return_index=True, return_inverse=True)
    for _ in range(ROUNDS):
        signature = np.concatenate([group[:, None], np.where(columns >= 0, group[columns], -1)], axis=1)
        _, refined_first, refined = np.unique(signature, axis=0, return_index=True, return_inverse=True)
        if len(refined_first) == len(first):
            return group, first
        group, first = refined.reshape(-1), refined_first
    return np.arange(len(final)), np.arange(len(final))


def _reachable(following: Int[np.ndarray, "s c"], start: int) -> list[int]:
    """States that can be reached, the first one first."""
    order, known = [start], {start}
    for state in order:
        for to in np.unique(following[state]).tolist():
            if to >= 0 and to not in known:
                known.add(to)
                order.append(to)
    return order
