"""What a draft step sees of the steps before it, where all of them are trained over the same text."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from eagle_jax.ops import LayerRows


def sight(slots: int, step: int) -> Bool[Array, "n n"]:
    """Returns which keys of step 0 the queries of draft step `step` see; of every later step each query sees one key.

    With four slots and step 1 (the slot before the first has nothing true after it, only itself), and below it what
    `with_step` makes of the later steps' keys, so that the one to see stands at the query's own slot:

              step 0            step 2 sees of step 1
              0 1 2 3           at slot  0 1 2 3
        0     . . . .           the key  0 0 1 2
        1     1 . . .
        2     1 1 . .
        3     1 1 1 .
    """
    query, key = jnp.arange(slots)[:, None], jnp.arange(slots)[None]
    return key <= query - step


def with_step(earlier_kv: tuple[LayerRows, ...], step_kv: tuple[LayerRows, ...]) -> tuple[LayerRows, ...]:
    """Returns the earlier steps' keys and values for the next one: step 0's, and after them every later step's.

    The chain that a query continues is one slot longer than in the step before, so the later steps' rows move by one.
    """
    if not earlier_kv:
        return step_kv

    def joined(old: Float[Array, "b k _ c"], new: Float[Array, "b k n c"]) -> Float[Array, "b k _ c"]:
        batch, heads, slots, size = new.shape
        later = jnp.concatenate([old[:, :, slots:], new], axis=2).reshape(batch, heads, -1, slots, size)
        moved = jnp.concatenate([later[:, :, :, :1], later[:, :, :, :-1]], axis=3)
        return jnp.concatenate([old[:, :, :slots], moved.reshape(batch, heads, -1, size)], axis=2)

    return tuple(jax.tree.map(joined, old, new) for old, new in zip(earlier_kv, step_kv, strict=True))
