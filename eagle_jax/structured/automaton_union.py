"""Union of two automata."""

import numpy as np

from eagle_jax.structured.byte_automaton import MAX_STATES, ByteAutomaton, minimize, too_large


def union(first: ByteAutomaton, second: ByteAutomaton, subject: str) -> ByteAutomaton:
    """Returns the automaton of the texts that either accepts. Raises ValueError if it is too large.

    Its states are pairs of their states; -1 is the state of an automaton that has rejected the text.
    """
    width = len(second.next) + 1  # a pair is encoded as one number, and -1 counts as a state
    index_of, pairs = {1 * width + 1: 0}, [(0, 0)]
    rows: list[np.ndarray] = []
    for first_state, second_state in pairs:
        first_row = first.next[first_state] if first_state >= 0 else np.full(256, -1)
        second_row = second.next[second_state] if second_state >= 0 else np.full(256, -1)
        next_pairs = (first_row.astype(np.int64) + 1) * width + second_row + 1
        row = np.full(256, -1, np.int64)
        for pair in np.unique(next_pairs[next_pairs > 0]).tolist():
            if pair not in index_of:
                index_of[pair] = len(pairs)
                pairs.append((pair // width - 1, pair % width - 1))
            row[next_pairs == pair] = index_of[pair]
        rows.append(row)
        if len(pairs) > MAX_STATES:
            raise too_large(subject)
    final = [(a >= 0 and first.final[a]) or (b >= 0 and second.final[b]) for a, b in pairs]
    return minimize(np.stack(rows), np.array(final, bool), 0, subject)
