"""Tree attention in plain JAX: the reference that the kernels are tested against.

On CPUs a cache that is mostly empty is read in blocks up to the longest row of the batch, so that a step costs what is
used of the cache and not what is reserved. A few fresh tokens are read together with the first block, since starting a
small product takes as long as computing it. A cache that is mostly full is read at once, since blocks have to be copied
out of it; so is any cache on other platforms, where a loop costs more than it saves.

`by_prefix` is the same for platforms without that loop: of the sizes 256, 512, 1,024, ... it reads the smallest that
holds the longest row of the batch.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.attention_call import UNSEEN, AttentionCall, Sums, absorb, scores
from eagle_jax.ops.attention_parts import in_parts
from eagle_jax.ops.types import KV, CachedKV

BLOCK = 128
FEW = 32  # fresh tokens that are read together with the first block
SMALLEST = 256  # slots of the smallest prefix


def attend(case: AttentionCall, block: int | None = None) -> Float[Array, "b k r c"]:
    """Computes the attention of each row over the keys that it attends to.

    Args:
        block: slots read at a time while the cache is mostly empty; None is `BLOCK` on CPU and all of them elsewhere.
    """
    if block is None and jax.default_backend() == "cpu":
        block = BLOCK
    if block is None or case.slots == 0 or (case.slots <= block and case.nodes > FEW):
        return in_parts(_over_all_slots, case)
    if case.slots <= block:
        return _mixed(case, _with_fresh(case, _begun(case), jnp.zeros((), jnp.int32), case.slots))
    empty = jnp.max(case.length) * 2 <= case.slots
    return jax.lax.cond(empty, lambda: _by_blocks(case, block), lambda: in_parts(_over_all_slots, case))


def by_prefix(case: AttentionCall) -> Float[Array, "b k r c"]:
    """Computes `attend` with a prefix of the cache: of several sizes the smallest that holds the longest row."""
    sizes = prefixes(case.slots)
    longest = jnp.max(case.length)
    index = sum(((longest > size).astype(jnp.int32) for size in sizes[:-1]), jnp.zeros((), jnp.int32))
    reads = [lambda size=size: in_parts(_over_all_slots, _beginning(case, size)) for size in sizes]
    return jax.lax.switch(index, reads)


def prefixes(slots: int) -> list[int]:
    """Returns the sizes of the prefixes of a cache that are read: powers of two, and all of it."""
    sizes = [size for size in (SMALLEST << power for power in range(slots.bit_length())) if size < slots]
    return [*sizes, slots]


def _beginning(case: AttentionCall, slots: int) -> AttentionCall:
    """Returns the case over the first slots of its cache, which hold all that is committed."""
    keys, values = case.prefix
    return dataclasses.replace(case, prefix=(keys[:, :, :slots], values[:, :, :slots]))


def _begun(case: AttentionCall) -> Sums:
    """Returns the sums of each row before any keys are read."""
    sums = case.begin()
    return _aligned(case, sums) if case.fresh[0].shape[2] > case.named else sums


def _mixed(case: AttentionCall, sums: Sums) -> Float[Array, "b k r c"]:
    return (sums[2] / sums[1]).astype(case.q.dtype)


def _aligned(case: AttentionCall, sums: Sums) -> Sums:
    """Adds the fresh rows without a column in `visible`: of each group of `n`, one for each node."""
    batch, heads, _, size = case.q.shape
    top, total, mixed = (part.reshape(batch, heads, case.group, 1, case.nodes, -1) for part in sums)
    rest = (part[:, :, case.named :] for part in case.fresh)
    keys, values = (part.reshape(batch, heads, 1, -1, case.nodes, size).astype(jnp.float32) for part in rest)
    q = case.q.astype(case.fresh[0].dtype).astype(jnp.float32).reshape(batch, heads, case.group, 1, case.nodes, size)
    scores = jnp.sum(q * keys, axis=-1, keepdims=True)
    if case.softcap is not None:
        scores = jnp.tanh(scores / case.softcap) * case.softcap
    new = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(scores, axis=3, keepdims=True)))
    weights, scale_down = jnp.exp(scores - new), jnp.exp(top - new)
    total = total * scale_down + jnp.sum(weights, axis=3, keepdims=True)
    mixed = mixed * scale_down + jnp.sum(weights * values, axis=3, keepdims=True)
    new, total, mixed = (part.reshape(batch, heads, case.group * case.nodes, -1) for part in (new, total, mixed))
    return new, total, mixed


def _over_all_slots(case: AttentionCall) -> Float[Array, "b k r c"]:
    """Attends to the fresh tokens, and to all of the cache at once."""
    sums = _read(case, _begun(case), _named(case), case.visible)
    if case.slots:
        sums = _read(
            case, sums, _of_requests(case, case.prefix), _prefix_mask(case, jnp.arange(case.slots, dtype=jnp.int32))
        )
    return _mixed(case, sums)


def _by_blocks(case: AttentionCall, block: int) -> Float[Array, "b k r c"]:
    """Attends to the fresh tokens and, by blocks, to the committed prefix, which ends in the cache's first half."""

    def read(index: Int[Array, ""], sums: Sums) -> Sums:
        part, slot = _block(case, index, block)
        return _read(case, sums, part, _prefix_mask(case, slot))

    sums = _begun(case)
    low = jnp.zeros((), jnp.int32) if case.first is None else jnp.maximum(jnp.min(case.first), 0) // block
    if case.nodes <= FEW:
        sums, low = _with_fresh(case, sums, low, block), low + 1
    else:  # the cache may be empty: the first chunk of a prompt
        sums = _read(case, sums, _named(case), case.visible)
    return _mixed(case, jax.lax.fori_loop(low, -(-jnp.max(case.length) // block), read, sums))


def _with_fresh(case: AttentionCall, sums: Sums, index: Int[Array, ""], block: int) -> Sums:
    """Adds one block of the cache and the fresh tokens in one product."""
    part, slot = _block(case, index, block)
    keys, values = (jnp.concatenate(both, axis=2) for both in zip(part, _named(case), strict=True))
    return _read(case, sums, (keys, values), jnp.concatenate([_prefix_mask(case, slot), case.visible], axis=2))


def _named(case: AttentionCall) -> KV:
    """Returns the fresh rows that `visible` has a column for."""
    keys, values = case.fresh
    return keys[:, :, : case.named], values[:, :, : case.named]


def _block(case: AttentionCall, index: Int[Array, ""], block: int) -> tuple[KV, Int[Array, "s"]]:
    """Returns block number `index` of the cache, and its slots."""
    at = index * block
    keys, values = (jax.lax.dynamic_slice_in_dim(part, at, block, axis=2) for part in case.prefix)
    return _of_requests(case, (keys, values)), at + jnp.arange(block, dtype=jnp.int32)


def _of_requests(case: AttentionCall, cached: CachedKV) -> KV:
    """Returns the requests' rows of (a part of) the cache."""
    keys, values = cached
    return cached if case.cache_rows is None else (keys[case.cache_rows], values[case.cache_rows])


def _prefix_mask(case: AttentionCall, slot: Int[Array, "s"]) -> Bool[Array, "b n s"]:
    """Returns which of the slots `slot` each node attends to."""
    mask = slot[None, None] < case.length[:, None, None]
    if case.first is not None:
        mask = mask & (slot[None, None] >= case.first[:, :, None])
    return jnp.broadcast_to(mask, (*case.visible.shape[:2], len(slot)))


def _read(case: AttentionCall, sums: Sums, part: KV, mask: Bool[Array, "b n s"]) -> Sums:
    """Adds keys and values under a mask."""
    return absorb(sums, _masked(scores(case.q, part[0], case.softcap), mask), part[1])


def _masked(scores: Float[Array, "b k r s"], mask: Bool[Array, "b n s"]) -> Float[Array, "b k r s"]:
    batch, n, slots = mask.shape
    by_node = scores.reshape(batch, scores.shape[1], -1, n, slots)
    return jnp.where(mask[:, None, None], by_node, UNSEEN).reshape(scores.shape)
