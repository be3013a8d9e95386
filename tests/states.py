"""What tests ask of a `DecodeState` beside its fields."""

import numpy as np

from eagle_jax.loop.state import DecodeState


def steps_by_row(state: DecodeState) -> np.ndarray:
    """Steps that each row took part in: the one that committed its last token."""
    return _at_length(state.committed_at_step, state)


def roots(state: DecodeState) -> np.ndarray:
    """The last drawn token of each row."""
    return _at_length(state.tokens, state)


def _at_length(values, state: DecodeState) -> np.ndarray:
    return np.take_along_axis(np.asarray(values), np.asarray(state.length)[:, None], axis=1)[:, 0]
