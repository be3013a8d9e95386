"""The automaton of texts that one of two automata accepts."""

import numpy as np

from eagle_jax.structured.byte_automaton import MOST_STATES, ByteAutomaton, smallest, too_large


def either_of(one: ByteAutomaton, other: ByteAutomaton, subject: str) -> ByteAutomaton:
    """Returns the automaton of both: its states are pairs of theirs, with -1 once a text has left that automaton.

    Raises:
        ValueError: it is too large.
    """
    width = len(other.next) + 1  # a pair is one number; -1 counts as a state of its own
    place, pairs = {1 * width + 1: 0}, [(0, 0)]
    following: list[np.ndarray] = []
    for first, second in pairs:
        after_one = one.next[first] if first >= 0 else np.full(256, -1)
        after_other = other.next[second] if second >= 0 else np.full(256, -1)
        reached = (after_one.astype(np.int64) + 1) * width + after_other + 1
        row = np.full(256, -1, np.int64)
        for pair in np.unique(reached[reached > 0]).tolist():
            if pair not in place:
                place[pair] = len(pairs)
                pairs.append((pair // width - 1, pair % width - 1))
            row[reached == pair] = place[pair]
        following.append(row)
        if len(pairs) > MOST_STATES:
            raise too_large(subject)
    final = [(a >= 0 and one.final[a]) or (b >= 0 and other.final[b]) for a, b in pairs]
    return smallest(np.stack(following), np.array(final, bool), 0, subject)
