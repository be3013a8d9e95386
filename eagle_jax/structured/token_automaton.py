"""Automata over the tokens of a vocabulary, as the tables that a device follows."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt32

from eagle_jax.structured.byte_automaton import ByteAutomaton, distinct_columns, leading_on

LARGEST = 64 * 2**20  # bytes of the tables of one automaton


@dataclasses.dataclass(frozen=True)
class TokenAutomaton:
    """See `decoding.automata.Automata`, of which this is one.

    Attributes:
        token_class: class of each token.
        next: the state after a token of a class; -1 where it is not allowed. State 0 is the first one.
        mask_of_state: which mask a state has.
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
    """Returns the automaton over tokens of an automaton over bytes.

    Args:
        tokens: the bytes of each token (`token_bytes`); b"" of one that is never allowed.
        stop_ids: tokens that end an answer: they are allowed where it is complete, and only there.

    Raises:
        ValueError: no answer of these tokens is complete, or the tables are too large.
    """
    following, token_class = _over_tokens(automaton, tokens, stop_ids)
    following = leading_on(following, following[:, -1] >= 0)
    if not (following[0] >= 0).any():
        raise ValueError("no text of this model's tokens is allowed; expected a form that some text has")
    columns, same = distinct_columns(following)
    token_class = same[token_class].astype(np.int32)
    by_mask, mask_of_state = distinct_columns((columns >= 0).T)
    allowed = by_mask.T
    words = -(-len(tokens) // 32)
    if 4 * (columns.size + len(allowed) * words) > LARGEST:
        raise ValueError(
            f"the automaton has {len(columns):,} states and takes more than {LARGEST // 2**20} MiB; use smaller "
            "counts, or fewer properties"
        )
    bits = np.zeros((len(allowed), words * 32), bool)
    bits[:, : len(tokens)] = allowed[:, token_class]
    masks = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return TokenAutomaton(token_class, columns.astype(np.int32), mask_of_state.astype(np.int32), masks)


def _over_tokens(
    automaton: ByteAutomaton, tokens: Sequence[bytes], stop_ids: Sequence[int]
) -> tuple[Int[np.ndarray, "s c"], Int[np.ndarray, "v"]]:
    """Returns the state after tokens of each class, and each token's class; stop tokens are the last class."""
    states = len(automaton.next)
    by_byte, byte_class = distinct_columns(automaton.next)
    table = bytes(byte_class.astype(np.uint8))
    # the state after a byte of each class, with one more state that leads nowhere
    nowhere = np.full(states, states, np.int32)
    steps = np.append(np.where(by_byte < 0, states, by_byte).T, np.full((by_byte.shape[1], 1), states), 1).astype(
        np.int32
    )
    columns = [nowhere, np.arange(states, dtype=np.int32)]  # after strings: those that lead to the same share one
    number = {column.tobytes(): i for i, column in enumerate(columns)}
    after: dict[tuple[int, int], int] = {}  # a column and the class of a byte after it

    def follow(column: int, byte: int) -> int:
        further = steps[byte].take(columns[column])
        after[column, byte] = index = number.setdefault(further.tobytes(), len(columns))
        if index == len(columns):
            columns.append(further)
        return index

    of_token = np.zeros(len(tokens), np.int64)
    of_word: dict[bytes, int] = {b"": 0}
    for id_, token in enumerate(tokens):
        word = token.translate(table)
        if word not in of_word:
            column = 1
            for byte in word:
                column = after[column, byte] if (column, byte) in after else follow(column, byte)
                if column == 0:
                    break
            of_word[word] = column
        of_token[id_] = of_word[word]
    used, token_class = np.unique(of_token, return_inverse=True)
    token_class = token_class.reshape(-1)
    token_class[list(stop_ids)] = len(used)
    last = np.where(automaton.final, np.arange(states), states)
    following = np.stack([*(columns[column] for column in used), last], axis=1)
    return np.where(following == states, -1, following), token_class
