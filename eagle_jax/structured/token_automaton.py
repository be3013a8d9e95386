"""Automata over the tokens of a vocabulary, as tables for the device."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt32

from eagle_jax.structured.byte_automaton import ByteAutomaton, distinct_columns, drop_dead_edges

MAX_TABLE_BYTES = 64 * 2**20  # bytes of the tables of one automaton


@dataclasses.dataclass(frozen=True)
class TokenAutomaton:
    """One of the automata that `decoding.automata.Automata` stacks.

    Attributes:
        token_class: class of each token.
        next: next state for each token class; -1 if it is not allowed. State 0 is the first one.
        mask_of_state: index of each state's mask.
        masks: bit i % 32 of word i // 32 is set if token i is allowed.
    """

    token_class: Int[np.ndarray, "v"]
    next: Int[np.ndarray, "s c"]
    mask_of_state: Int[np.ndarray, "s"]
    masks: UInt32[np.ndarray, "m w"]

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in (self.token_class, self.next, self.mask_of_state, self.masks))


def token_automaton(automaton: ByteAutomaton, tokens: Sequence[bytes], stop_ids: Sequence[int]) -> TokenAutomaton:
    """Converts an automaton over bytes into one over tokens.

    Args:
        tokens: the bytes of each token (`token_bytes`); b"" for a token that is never allowed.
        stop_ids: tokens that end an answer: allowed exactly in final states.

    Raises:
        ValueError: no sequence of these tokens is accepted, or the tables are too large.
    """
    transitions, token_class = _over_tokens(automaton, tokens, stop_ids)
    transitions = drop_dead_edges(transitions, transitions[:, -1] >= 0)
    if not (transitions[0] >= 0).any():
        raise ValueError("the form allows no text of this model's tokens; expected a form that some text matches")
    class_transitions, column_of = distinct_columns(transitions)
    token_class = column_of[token_class].astype(np.int32)
    by_mask, mask_of_state = distinct_columns((class_transitions >= 0).T)
    allowed = by_mask.T
    words = -(-len(tokens) // 32)
    if 4 * (class_transitions.size + len(allowed) * words) > MAX_TABLE_BYTES:
        raise ValueError(
            f"the automaton has {len(class_transitions):,} states and takes more than {MAX_TABLE_BYTES // 2**20} MiB; "
            "use smaller counts, or fewer properties"
        )
    bits = np.zeros((len(allowed), words * 32), bool)
    bits[:, : len(tokens)] = allowed[:, token_class]
    masks = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return TokenAutomaton(token_class, class_transitions.astype(np.int32), mask_of_state.astype(np.int32), masks)


def _over_tokens(
    automaton: ByteAutomaton, tokens: Sequence[bytes], stop_ids: Sequence[int]
) -> tuple[Int[np.ndarray, "s c"], Int[np.ndarray, "v"]]:
    """Returns the next state for each token class, and each token's class; stop tokens are the last class."""
    states = len(automaton.next)
    by_byte, byte_class = distinct_columns(automaton.next)
    byte_class_table = bytes(byte_class.astype(np.uint8))
    # the next state for each class of bytes, with one more state for rejected texts
    nowhere = np.full(states, states, np.int32)
    next_of_class = np.append(
        np.where(by_byte < 0, states, by_byte).T, np.full((by_byte.shape[1], 1), states), 1
    ).astype(np.int32)
    columns = [nowhere, np.arange(states, dtype=np.int32)]  # next states for strings; equal columns are shared
    index_of = {column.tobytes(): i for i, column in enumerate(columns)}
    column_after: dict[tuple[int, int], int] = {}  # a column and the class of a byte after it

    def follow(column: int, byte: int) -> int:
        column_states = next_of_class[byte].take(columns[column])
        column_after[column, byte] = index = index_of.setdefault(column_states.tobytes(), len(columns))
        if index == len(columns):
            columns.append(column_states)
        return index

    column_of_token = np.zeros(len(tokens), np.int64)
    column_of_word: dict[bytes, int] = {b"": 0}
    for id_, token in enumerate(tokens):
        word = token.translate(byte_class_table)
        if word not in column_of_word:
            column = 1
            for byte in word:
                column = column_after[column, byte] if (column, byte) in column_after else follow(column, byte)
                if column == 0:
                    break
            column_of_word[word] = column
        column_of_token[id_] = column_of_word[word]
    used_columns, token_class = np.unique(column_of_token, return_inverse=True)
    token_class = token_class.reshape(-1)
    token_class[list(stop_ids)] = len(used_columns)
    final_states = np.where(automaton.final, np.arange(states), states)
    transitions = np.stack([*(columns[column] for column in used_columns), final_states], axis=1)
    return np.where(transitions == states, -1, transitions), token_class
