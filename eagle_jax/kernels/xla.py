"""Tree attention in plain JAX: runs everywhere, and what the kernels are held against.

On CPU a cache that is mostly empty is read in blocks, up to the longest row of the batch and no further, so that a
cycle costs what is used of the cache and not what is reserved. One that is mostly full is read at once: blocks have to
be copied out of it. Elsewhere it always is, since there a loop costs more than it saves.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.kernels.base import UNSEEN, Case, Sums, absorb, nothing, scores
from eagle_jax.models.cache import KV

BLOCK = 128


def attend(case: Case, block: int | None = None) -> Float[Array, "b k r c"]:
    """The average over all that each row sees.

    Args:
        block: slots read at a time while the cache is mostly empty; None is `BLOCK` on CPU and all of them elsewhere.
    """
    keys, values = (part[:, :, : case.named] for part in case.fresh)
    sums = absorb(nothing(case.q.shape), _masked(scores(case.q, keys, case.softcap), case.visible), values)
    if case.fresh[0].shape[2] > case.named:
        sums = _aligned(case, sums)
    if block is None:
        block = BLOCK if jax.default_backend() == "cpu" else case.slots
    if 0 < case.slots <= block:
        sums = _whole(case, sums)
    elif case.slots:
        empty = jnp.max(case.length) * 2 <= case.slots
        sums = jax.lax.cond(empty, lambda: _by_blocks(case, sums, block), lambda: _whole(case, sums))
    return (sums[2] / sums[1]).astype(case.q.dtype)


def _aligned(case: Case, sums: Sums) -> Sums:
    """`sums` with the rows behind the named ones: of each `n` of them, one for each node."""
    batch, heads, _, size = case.q.shape
    top, total, mixed = (part.reshape(batch, heads, case.group, 1, case.nodes, -1) for part in sums)
    rest = (part[:, :, case.named :] for part in case.fresh)
    keys, values = (part.reshape(batch, heads, 1, -1, case.nodes, size).astype(jnp.float32) for part in rest)
    q = case.q.astype(case.fresh[0].dtype).astype(jnp.float32).reshape(batch, heads, case.group, 1, case.nodes, size)
    own = jnp.sum(q * keys, axis=-1, keepdims=True)
    if case.softcap is not None:
        own = jnp.tanh(own / case.softcap) * case.softcap
    new = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(own, axis=3, keepdims=True)))
    weights, kept = jnp.exp(own - new), jnp.exp(top - new)
    total = total * kept + jnp.sum(weights, axis=3, keepdims=True)
    mixed = mixed * kept + jnp.sum(weights * values, axis=3, keepdims=True)
    new, total, mixed = (part.reshape(batch, heads, case.group * case.nodes, -1) for part in (new, total, mixed))
    return new, total, mixed


def _whole(case: Case, sums: Sums) -> Sums:
    """`sums` with the committed prefix."""
    return _read(case, sums, case.prefix, jnp.arange(case.slots, dtype=jnp.int32))


def _by_blocks(case: Case, sums: Sums, block: int) -> Sums:
    """`sums` with the committed prefix, of which less than half of the cache is used."""

    def read(index: Int[Array, ""], sums: Sums) -> Sums:
        at = index * block
        keys, values = (jax.lax.dynamic_slice_in_dim(part, at, block, axis=2) for part in case.prefix)
        return _read(case, sums, (keys, values), at + jnp.arange(block, dtype=jnp.int32))

    low = 0 if case.first is None else jnp.maximum(jnp.min(case.first), 0) // block
    return jax.lax.fori_loop(low, -(-jnp.max(case.length) // block), read, sums)


def _read(case: Case, sums: Sums, part: KV, slot: Int[Array, "s"]) -> Sums:
    """`sums` with the slots `slot` of the cache, which hold `part`."""
    seen = slot[None, None] < case.length[:, None, None]
    if case.first is not None:
        seen = seen & (slot[None, None] >= case.first[:, :, None])
    seen = jnp.broadcast_to(seen, (*case.visible.shape[:2], len(slot)))
    return absorb(sums, _masked(scores(case.q, part[0], case.softcap), seen), part[1])


def _masked(scores: Float[Array, "b k r s"], seen: Bool[Array, "b n s"]) -> Float[Array, "b k r s"]:
    batch, n, slots = seen.shape
    by_node = scores.reshape(batch, scores.shape[1], -1, n, slots)
    return jnp.where(seen[:, None, None], by_node, UNSEEN).reshape(scores.shape)
