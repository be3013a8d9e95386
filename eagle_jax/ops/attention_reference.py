"""Tree attention in plain JAX: the reference that the kernels are tested against.

On CPUs a cache that is mostly empty is read in blocks up to the longest row of the batch, so the cost of a step follows
the used part of the cache, not its size. A few fresh tokens are read together with the first block, since starting a
small product takes as long as computing it. A cache that is mostly full is read at once, since blocks have to be copied
out of it; so is any cache on other platforms, where a loop costs more than it saves.

`by_prefix` saves reads without a loop: it reads the smallest prefix of 256, 512, 1,024, ... positions that holds the
longest row of the batch.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.attention_call import MASKED_SCORE, AttentionCall, SoftmaxState, add_keys, scores
from eagle_jax.ops.attention_parts import in_parts
from eagle_jax.ops.types import KV, CachedKV

BLOCK = 128
MAX_FUSED_TOKENS = 32  # up to so many fresh tokens are read together with the first block
MIN_PREFIX = 256  # positions


def attend(call: AttentionCall, block: int | None = None) -> Float[Array, "b k r c"]:
    """Computes the attention of each row over the keys that it attends to.

    Args:
        block: slots read at a time while the cache is mostly empty; None is `BLOCK` on CPU and all of them elsewhere.
    """
    if block is None and jax.default_backend() == "cpu":
        block = BLOCK
    if block is None or call.slots == 0 or (call.slots <= block and call.nodes > MAX_FUSED_TOKENS):
        return in_parts(_over_all_slots, call)
    if call.slots <= block:
        return _normalized(call, _with_fresh(call, _initial_state(call), jnp.zeros((), jnp.int32), call.slots))
    empty = jnp.max(call.length) * 2 <= call.slots
    return jax.lax.cond(empty, lambda: _by_blocks(call, block), lambda: in_parts(_over_all_slots, call))


def by_prefix(call: AttentionCall) -> Float[Array, "b k r c"]:
    """Computes `attend` with the smallest prefix of the cache that holds the longest row."""
    sizes = prefixes(call.slots)
    longest = jnp.max(call.length)
    index = sum(((longest > size).astype(jnp.int32) for size in sizes[:-1]), jnp.zeros((), jnp.int32))
    reads = [lambda size=size: in_parts(_over_all_slots, _with_prefix(call, size)) for size in sizes]
    return jax.lax.switch(index, reads)


def prefixes(slots: int) -> list[int]:
    """Returns the sizes of prefixes that can be read: powers of two, and the whole cache."""
    sizes = [size for size in (MIN_PREFIX << power for power in range(slots.bit_length())) if size < slots]
    return [*sizes, slots]


def _with_prefix(call: AttentionCall, slots: int) -> AttentionCall:
    """Returns the call with the first `slots` positions of its cache alone."""
    keys, values = call.prefix
    return dataclasses.replace(call, prefix=(keys[:, :, :slots], values[:, :, :slots]))


def _initial_state(call: AttentionCall) -> SoftmaxState:
    """Returns the state of each row before the cache and the columns of `visible`: sinks and own rows."""
    sums = call.begin()
    return _add_own_rows(call, sums) if call.fresh[0].shape[2] > call.num_visible else sums


def _normalized(call: AttentionCall, sums: SoftmaxState) -> Float[Array, "b k r c"]:
    return (sums[2] / sums[1]).astype(call.q.dtype)


def _add_own_rows(call: AttentionCall, sums: SoftmaxState) -> SoftmaxState:
    """Adds the fresh rows beyond the columns of `visible`, in groups of `n`: one row of each group per node."""
    batch, heads, _, size = call.q.shape
    top, total, mixed = (part.reshape(batch, heads, call.group, 1, call.nodes, -1) for part in sums)
    rest = (part[:, :, call.num_visible :] for part in call.fresh)
    keys, values = (part.reshape(batch, heads, 1, -1, call.nodes, size).astype(jnp.float32) for part in rest)
    q = call.q.astype(call.fresh[0].dtype).astype(jnp.float32).reshape(batch, heads, call.group, 1, call.nodes, size)
    scores = jnp.sum(q * keys, axis=-1, keepdims=True)
    if call.softcap is not None:
        scores = jnp.tanh(scores / call.softcap) * call.softcap
    new = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(scores, axis=3, keepdims=True)))
    weights, scale_down = jnp.exp(scores - new), jnp.exp(top - new)
    total = total * scale_down + jnp.sum(weights, axis=3, keepdims=True)
    mixed = mixed * scale_down + jnp.sum(weights * values, axis=3, keepdims=True)
    new, total, mixed = (part.reshape(batch, heads, call.group * call.nodes, -1) for part in (new, total, mixed))
    return new, total, mixed


def _over_all_slots(call: AttentionCall) -> Float[Array, "b k r c"]:
    """Attends to the fresh tokens and to the whole cache at once."""
    sums = _add_masked(call, _initial_state(call), _visible_kv(call), call.visible)
    if call.slots:
        sums = _add_masked(
            call, sums, _rows_of_requests(call, call.prefix), _cache_mask(call, jnp.arange(call.slots, dtype=jnp.int32))
        )
    return _normalized(call, sums)


def _by_blocks(call: AttentionCall, block: int) -> Float[Array, "b k r c"]:
    """Attends to the fresh tokens and, by blocks, to the committed prefix, which ends in the cache's first half."""

    def read(index: Int[Array, ""], sums: SoftmaxState) -> SoftmaxState:
        part, slot = _block(call, index, block)
        return _add_masked(call, sums, part, _cache_mask(call, slot))

    sums = _initial_state(call)
    low = jnp.zeros((), jnp.int32) if call.first is None else jnp.maximum(jnp.min(call.first), 0) // block
    if call.nodes <= MAX_FUSED_TOKENS:
        sums, low = _with_fresh(call, sums, low, block), low + 1
    else:  # the cache may be empty: the first chunk of a prompt
        sums = _add_masked(call, sums, _visible_kv(call), call.visible)
    return _normalized(call, jax.lax.fori_loop(low, -(-jnp.max(call.length) // block), read, sums))


def _with_fresh(call: AttentionCall, sums: SoftmaxState, index: Int[Array, ""], block: int) -> SoftmaxState:
    """Adds one block of the cache and the fresh tokens in one product."""
    part, slot = _block(call, index, block)
    keys, values = (jnp.concatenate(both, axis=2) for both in zip(part, _visible_kv(call), strict=True))
    return _add_masked(call, sums, (keys, values), jnp.concatenate([_cache_mask(call, slot), call.visible], axis=2))


def _visible_kv(call: AttentionCall) -> KV:
    """Returns the fresh keys and values that `visible` has a column for."""
    keys, values = call.fresh
    return keys[:, :, : call.num_visible], values[:, :, : call.num_visible]


def _block(call: AttentionCall, index: Int[Array, ""], block: int) -> tuple[KV, Int[Array, "s"]]:
    """Returns block `index` of the cache and its positions."""
    at = index * block
    keys, values = (jax.lax.dynamic_slice_in_dim(part, at, block, axis=2) for part in call.prefix)
    return _rows_of_requests(call, (keys, values)), at + jnp.arange(block, dtype=jnp.int32)


def _rows_of_requests(call: AttentionCall, cached: CachedKV) -> KV:
    """Returns the requests' rows of the cache, or of a part of it."""
    keys, values = cached
    return cached if call.cache_rows is None else (keys[call.cache_rows], values[call.cache_rows])


def _cache_mask(call: AttentionCall, slot: Int[Array, "s"]) -> Bool[Array, "b n s"]:
    """Returns which of the positions `slot` each node attends to."""
    mask = slot[None, None] < call.length[:, None, None]
    if call.first is not None:
        mask = mask & (slot[None, None] >= call.first[:, :, None])
    return jnp.broadcast_to(mask, (*call.visible.shape[:2], len(slot)))


def _add_masked(call: AttentionCall, sums: SoftmaxState, part: KV, mask: Bool[Array, "b n s"]) -> SoftmaxState:
    """Adds keys and values under a mask."""
    return add_keys(sums, _masked(scores(call.q, part[0], call.softcap), mask), part[1])


def _masked(scores: Float[Array, "b k r s"], mask: Bool[Array, "b n s"]) -> Float[Array, "b k r s"]:
    batch, n, slots = mask.shape
    by_node = scores.reshape(batch, scores.shape[1], -1, n, slots)
    return jnp.where(mask[:, None, None], by_node, MASKED_SCORE).reshape(scores.shape)
