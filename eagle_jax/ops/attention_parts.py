"""Attention in parts, which bounds the memory of the float32 scores.

Nodes are independent of each other, so a part is some requests, or some nodes of one request if its scores alone are
too large.

    requests x nodes     4 x 3, one request at a time    1 x 6, two nodes at a time
                         a a a                           a a b b c c
                         b b b
                         c c c
                         d d d
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.sharding.tracing import by_head

# 32 prompts of 256 tokens over 4,096 positions, with 32 heads, have scores of 16 times this size.
MAX_SCORE_BYTES = 2**28


def in_parts(
    attend: Callable[[AttentionCall], Float[Array, "b k r c"]], call: AttentionCall
) -> Float[Array, "b k r c"]:
    """Computes `attend(call)` in parts whose scores take at most `MAX_SCORE_BYTES`, or are those of a single node.

    Calls with fresh rows beyond the columns of `visible`, as in training, are not divided.
    """
    if scores_size(call) <= MAX_SCORE_BYTES or call.fresh[0].shape[2] > call.num_visible:
        return attend(call)
    return by_head(lambda head_call: _parts_on_device(attend, head_call), call)


def scores_size(call: AttentionCall) -> int:
    """Returns the number of bytes of the larger of the scores over the cache and over the fresh rows."""
    batch, heads, rows, _ = call.q.shape
    return 4 * batch * heads * rows * max(call.slots, call.num_visible)


def _parts_on_device(attend: Callable[[AttentionCall], Array], call: AttentionCall) -> Float[Array, "b k r c"]:
    of_request = scores_size(call) // len(call.q)
    if of_request <= MAX_SCORE_BYTES:
        return _by_requests(attend, call, MAX_SCORE_BYTES // of_request)
    return _by_requests(functools.partial(_by_nodes, attend), call, 1)


def _by_requests(
    attend: Callable[[AttentionCall], Array], call: AttentionCall, max_requests: int
) -> Float[Array, "b k r c"]:
    """Runs `attend` on parts of equal size, of at most `max_requests` requests."""
    batch = len(call.q)
    size = next(size for size in range(min(max_requests, batch), 0, -1) if batch % size == 0)
    if size == batch:
        return attend(call)

    def attend_part(begin: Array) -> Float[Array, "p k r c"]:
        def some(part: Any) -> Any:
            return jax.tree.map(lambda rows: jax.lax.dynamic_slice_in_dim(rows, begin, size), part)

        names = ("q", "fresh", "visible", "length", "first", "cache_rows", "count")
        rows_of = {name: some(getattr(call, name)) for name in names}
        prefix = some(call.prefix) if call.cache_rows is None else call.prefix
        return attend(dataclasses.replace(call, **rows_of, prefix=prefix))

    begins = jnp.arange(batch // size, dtype=jnp.int32) * size
    return jax.lax.map(attend_part, begins).reshape(call.q.shape)


def _by_nodes(attend: Callable[[AttentionCall], Array], call: AttentionCall) -> Float[Array, "b k r c"]:
    """Runs `attend` on parts of the nodes; the last part may overlap the one before."""
    batch, heads, _, size = call.q.shape
    nodes = call.nodes
    width = max(MAX_SCORE_BYTES // (scores_size(call) // nodes), 1)
    pieces = -(-nodes // width)
    begins = jnp.minimum(jnp.arange(pieces, dtype=jnp.int32) * width, nodes - width)
    q = call.q.reshape(batch, heads, -1, nodes, size)
    sinks = None if call.sinks is None else call.sinks.reshape(1, heads, -1, nodes, 1)

    def attend_part(begin: Array) -> Float[Array, "b k g w c"]:
        def some(rows: Array, axis: int) -> Array:
            return jax.lax.dynamic_slice_in_dim(rows, begin, width, axis=axis)

        part = dataclasses.replace(
            call,
            q=some(q, 3).reshape(batch, heads, -1, size),
            visible=some(call.visible, 1),
            first=None if call.first is None else some(call.first, 1),
            count=None,
            sinks=None if sinks is None else some(sinks, 3).reshape(1, heads, -1, 1),
        )
        return attend(part).reshape(batch, heads, -1, width, size)

    parts = jax.lax.map(attend_part, begins)
    place = jnp.minimum(jnp.arange(nodes, dtype=jnp.int32) // width, pieces - 1)
    within = jnp.arange(nodes, dtype=jnp.int32) - begins[place]
    return jnp.moveaxis(parts[place, :, :, :, within], 0, 3).reshape(call.q.shape)
