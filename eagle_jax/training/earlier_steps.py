"""Attention of a draft step to earlier draft steps, when all steps are trained on the same text."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from eagle_jax.ops import LayerRows


def visible_keys(slots: int, step: int) -> Bool[Array, "n n"]:
    """Returns which keys of step 0 are visible to the queries of draft step `step`.

    Of every later step, a query sees one key: `append_step` moves keys so that it is at the query's own slot. With four
    slots, for queries of step 1, and for the keys of step 1 in step 2:

              step 0            step 2 sees of step 1
              0 1 2 3           at slot  0 1 2 3
        0     . . . .           the key  0 0 1 2
        1     1 . . .
        2     1 1 . .
        3     1 1 1 .
    """
    query, key = jnp.arange(slots)[:, None], jnp.arange(slots)[None]
    return key <= query - step


def append_step(earlier_kv: tuple[LayerRows, ...], step_kv: tuple[LayerRows, ...]) -> tuple[LayerRows, ...]:
    """Returns keys and values for the next draft step: the rows of step 0, then the rows of every later step.

    The chain that a query continues grows by one slot per step, so the later steps' rows move by one.
    """
    if not earlier_kv:
        return step_kv

    def joined(old: Float[Array, "b k _ c"], new: Float[Array, "b k n c"]) -> Float[Array, "b k _ c"]:
        batch, heads, slots, size = new.shape
        later = jnp.concatenate([old[:, :, slots:], new], axis=2).reshape(batch, heads, -1, slots, size)
        moved = jnp.concatenate([later[:, :, :, :1], later[:, :, :, :-1]], axis=3)
        return jnp.concatenate([old[:, :, :slots], moved.reshape(batch, heads, -1, size)], axis=2)

    return tuple(jax.tree.map(joined, old, new) for old, new in zip(earlier_kv, step_kv, strict=True))
