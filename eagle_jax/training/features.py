"""What the frozen target knows about the training text: its hidden states at every token."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.models.lm import LM
from eagle_jax.training.data import Rows


def hidden_states(target: LM, tokens: Int[Array, "b n"], taps: tuple[int, ...] = ()) -> Float[Array, "b n f"]:
    """Hidden states after the final norm, then the residual streams entering the layers `taps`, side by side."""
    output = target.causal(tokens, taps)
    return jnp.concatenate([output.hidden, *output.taps], axis=-1)


def compute(
    target: LM,
    rows: Rows,
    batch: int,
    progress: Callable[[int, int], None] | None = None,
    *,
    taps: tuple[int, ...] = (),
) -> Float[np.ndarray, "r n f"]:
    """`hidden_states` of all rows, in float16 on the host: `2 h` bytes a token and state, computed once instead of in
    every epoch.

    Args:
        batch: rows per target pass.
        progress: called with (rows done, rows in all).
        taps: those of the head that is trained.
    """
    forward = jax.jit(functools.partial(hidden_states, taps=taps))
    out = np.zeros((*rows.tokens.shape, (1 + len(taps)) * target.config.hidden_size), np.float16)
    for start in range(0, len(rows), batch):
        part = rows.tokens[start : start + batch]
        padded = np.zeros((batch, part.shape[1]), np.int32)
        padded[: len(part)] = part
        out[start : start + len(part)] = np.asarray(forward(target, padded))[: len(part)]
        if progress is not None:
            progress(min(start + batch, len(rows)), len(rows))
    return out
