"""Automata over the tokens of a vocabulary, as the tables that a device follows."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt32

from eagle_jax.text.byte_automaton import ByteAutomaton, leading_on

LARGEST = 64 * 2**20  # bytes of the tables of one automaton


@dataclasses.dataclass(frozen=True)
class TokenAutomaton:
    """See `decoding.automata.Automata`, of which this is one.

    Attributes:
        token_class: of each token.
        next: the state after a token of a class; -1 where it is not allowed. State 0 is the first one.
        mask_of_state: which mask a state has.
        masks: bit i % 32 of word i // 32 tells whether token i is allowed.
    """

    token_class: Int[np.ndarray, "v"]
    next: Int[np.ndarray, "s c"]
    mask_of_state: Int[np.ndarray, "s"]
    masks: UInt32[np.ndarray, "m w"]

    @property
    def nbytes(self) -> int:
        """Of all tables."""
        return sum(table.nbytes for table in (self.token_class, self.next, self.mask_of_state, self.masks))


def token_automaton(automaton: ByteAutomaton, tokens: Sequence[bytes], stop_ids: Sequence[int]) -> TokenAutomaton:
    """The automaton over tokens of an automaton over bytes.

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
    columns, same = np.unique(following, axis=1, return_inverse=True)
    token_class = same.reshape(-1)[token_class].astype(np.int32)
    allowed, mask_of_state = np.unique(columns >= 0, axis=0, return_inverse=True)
    words = -(-len(tokens) // 32)
    if 4 * (columns.size + len(allowed) * words) > LARGEST:
        raise ValueError(
            f"the automaton has {len(columns):,} states and takes more than {LARGEST // 2**20} MiB; use smaller "
            "counts, or fewer properties"
        )
    bits = np.zeros((len(allowed), words * 32), bool)
    bits[:, : len(tokens)] = allowed[:, token_class]
    masks = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return TokenAutomaton(token_class, columns.astype(np.int32), mask_of_state.reshape(-1).astype(np.int32), masks)


def _over_tokens(
    automaton: ByteAutomaton, tokens: Sequence[bytes], stop_ids: Sequence[int]
) -> tuple[Int[np.ndarray, "s c"], Int[np.ndarray, "v"]]:
    """The state after tokens of each class, and the class of each token; the last class is that of stop tokens."""
    states = len(automaton.next)
    by_byte, byte_class = np.unique(automaton.next, axis=1, return_inverse=True)
    table = bytes(byte_class.reshape(-1).astype(np.uint8))
    # the state after a byte of each class, with one more state that leads nowhere
    nowhere = np.full(states, states, np.int32)
    steps = np.append(np.where(by_byte < 0, states, by_byte).T, np.full((by_byte.shape[1], 1), states), 1).astype(
        np.int32
    )
    after: dict[bytes, np.ndarray] = {b"": np.arange(states, dtype=np.int32)}  # strings of classes, and where they lead

    def follow(word: bytes) -> np.ndarray:
        if word not in after:
            before = follow(word[:-1])
            after[word] = nowhere if before is nowhere else steps[word[-1]].take(before)
            if after[word].min() == states:
                after[word] = nowhere
        return after[word]

    columns, classes = [nowhere], {nowhere.tobytes(): 0}
    class_of_word: dict[bytes, int] = {b"": 0}
    token_class = np.zeros(len(tokens), np.int64)
    for id_, token in enumerate(tokens):
        word = token.translate(table)
        if word not in class_of_word:
            column = follow(word)
            class_of_word[word] = classes.setdefault(column.tobytes(), len(columns))
            if class_of_word[word] == len(columns):
                columns.append(column)
        token_class[id_] = class_of_word[word]
    token_class[list(stop_ids)] = len(columns)
    columns.append(np.where(automaton.final, np.arange(states), states))
    following = np.stack(columns, axis=1)
    return np.where(following == states, -1, following), token_class
