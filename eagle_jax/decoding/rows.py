"""Gathers rows of a batch, and writes rows into it."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def take_rows(values: Float[Array, "b n h"], nodes: Int[Array, "b r"]) -> Float[Array, "b r h"]:
    return jnp.take_along_axis(values, nodes[:, :, None], axis=1)


def append(text: Any, rows: Any, at: Int[Array, "b"]) -> Any:
    """Writes `rows[b r]` into `text[b t]` at position `at` of each row, where all r must fit."""
    return jax.vmap(lambda line, new, start: jax.lax.dynamic_update_slice_in_dim(line, new, start, axis=0))(
        text, rows, at
    )
