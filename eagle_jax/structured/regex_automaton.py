"""Byte automata of regular expressions, built by outlines-core."""

import functools

import numpy as np

from eagle_jax.checks import cut
from eagle_jax.structured.byte_automaton import MAX_STATES, ByteAutomaton, minimize, too_large

# Of alternatives, outlines-core follows the first that completes: of "a|ab", never the second. An expression that
# completes only after this character is not cut short. No text contains it: U+10FFFF is not a character.
END = "\U0010ffff"


@functools.lru_cache(maxsize=256)
def cached_automaton(regex: str) -> ByteAutomaton:
    """Returns the automaton of one of this package's own expressions, which are few enough to cache."""
    return regex_automaton(regex)


def regex_automaton(regex: str) -> ByteAutomaton:
    """Returns the automaton of the UTF-8 texts that a regular expression matches as a whole.

    The syntax is that of Rust's `regex` without inner anchors, look-around, word boundaries and back references. Some
    short expressions have automata that exceed any memory, so users' expressions are compiled in a separate process
    (`structured.form_workers`).

    Raises:
        ValueError: the expression is invalid, or its automaton is too large.
        ImportError: outlines-core is not installed.
    """
    try:
        import outlines_core
    except ImportError:
        raise ImportError('structured output needs outlines-core: pip install "eagle-jax[structured]"') from None
    vocabulary = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    try:
        index = outlines_core.Index(f"(?:{_without_anchors(regex)}){END}", vocabulary)
    except ValueError as error:
        if "Found no transitions" in str(error):
            raise ValueError(f"no text matches the regular expression {cut(regex)!r}; change it") from None
        raise ValueError(
            f"the regular expression {cut(regex)!r} is not supported ({' '.join(str(error).split())[:200]}); "
            "expected the syntax of Rust's regex without inner anchors, look-around, word boundaries or back references"
        ) from None
    transitions, final_states = index.get_transitions(), index.get_final_states()
    numbers = {
        index.get_initial_state(),
        *transitions,
        *final_states,
        *(target for row in transitions.values() for target in row.values()),
    }
    if len(numbers) > MAX_STATES:
        raise too_large(repr(cut(regex)))
    index_of = {number: i for i, number in enumerate(sorted(numbers))}
    table = np.full((len(index_of), 256), -1, np.int32)
    for state, row in transitions.items():
        for byte, target in row.items():
            if byte < 256:
                table[index_of[state], byte] = index_of[target]
    reached = np.arange(len(index_of))
    for byte in END.encode():
        reached = np.where(reached >= 0, table[reached, byte], -1)
    final = (reached >= 0) & np.isin(reached, [index_of[number] for number in final_states])
    return minimize(table, final, index_of[index.get_initial_state()], repr(cut(regex)))


def _without_anchors(regex: str) -> str:
    """Removes a leading `^` and a trailing `$`, which are implied."""
    is_escaped = (len(regex) - len(regex[:-1].rstrip("\\"))) % 2 == 0
    regex = regex[:-1] if regex.endswith("$") and not is_escaped else regex
    return regex.removeprefix("^")
