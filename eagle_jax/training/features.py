"""What the frozen target knows about the training text: its final hidden state at every token."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.models.lm import LM
from eagle_jax.training.data import Rows

Forward = Callable[[Int[Array, "b n"]], Float[Array, "b n h"]]


def hidden_states(target: LM, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
    """Hidden states after the final norm: what an EAGLE head calls features."""
    return target(tokens)[0]


def compute(
    target: LM, rows: Rows, batch: int, progress: Callable[[int, int], None] | None = None
) -> Float[np.ndarray, "r n h"]:
    """Features of all rows, in float16 on the host: `2 h` bytes a token, computed once instead of in every epoch.

    Args:
        batch: rows per target pass.
        progress: called with (rows done, rows in all).
    """
    forward = jax.jit(hidden_states)
    out = np.zeros((*rows.tokens.shape, target.config.hidden_size), np.float16)
    for start in range(0, len(rows), batch):
        part = rows.tokens[start : start + batch]
        padded = np.zeros((batch, part.shape[1]), np.int32)
        padded[: len(part)] = part
        out[start : start + len(part)] = np.asarray(forward(target, padded))[: len(part)]
        if progress is not None:
            progress(min(start + batch, len(rows)), len(rows))
    return out
