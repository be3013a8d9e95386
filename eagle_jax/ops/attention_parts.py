"""Attention in parts, so that the float32 scores that are in memory at a time stay below a size.

What a node attends to has nothing to do with other nodes, so requests are read some at a time, or, where one request's
scores are too large by themselves, some of its nodes.

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

MAX_SCORES_BYTES = (
    2**28
)  # bytes of scores: 32 prompts of 256 tokens over 4,096 slots, with 32 heads, have 16 times as many


def in_parts(
    attend: Callable[[AttentionCall], Float[Array, "b k r c"]], case: AttentionCall
) -> Float[Array, "b k r c"]:
    """Computes `attend(case)` in parts whose scores take at most `MAX_SCORES_BYTES`; a part has one node or more.

    Cases of training, with fresh rows that `visible` does not name, are not divided.
    """
    if scores_size(case) <= MAX_SCORES_BYTES or case.fresh[0].shape[2] > case.named:
        return attend(case)
    return by_head(lambda head_call: _parts_on_device(attend, head_call), case)


def scores_size(case: AttentionCall) -> int:
    """Returns the number of bytes of the larger of the scores over the cache and over the fresh rows."""
    batch, heads, rows, _ = case.q.shape
    return 4 * batch * heads * rows * max(case.slots, case.named)


def _parts_on_device(attend: Callable[[AttentionCall], Array], case: AttentionCall) -> Float[Array, "b k r c"]:
    of_request = scores_size(case) // len(case.q)
    if of_request <= MAX_SCORES_BYTES:
        return _by_requests(attend, case, MAX_SCORES_BYTES // of_request)
    return _by_requests(functools.partial(_by_nodes, attend), case, 1)


def _by_requests(
    attend: Callable[[AttentionCall], Array], case: AttentionCall, max_requests: int
) -> Float[Array, "b k r c"]:
    """Runs `attend` on the largest number of requests up to `max_requests` that divides the batch, part by part."""
    batch = len(case.q)
    size = next(size for size in range(min(max_requests, batch), 0, -1) if batch % size == 0)
    if size == batch:
        return attend(case)

    def attend_part(begin: Array) -> Float[Array, "p k r c"]:
        def some(part: Any) -> Any:
            return jax.tree.map(lambda rows: jax.lax.dynamic_slice_in_dim(rows, begin, size), part)

        names = ("q", "fresh", "visible", "length", "first", "cache_rows", "count")
        rows_of = {name: some(getattr(case, name)) for name in names}
        prefix = some(case.prefix) if case.cache_rows is None else case.prefix
        return attend(dataclasses.replace(case, **rows_of, prefix=prefix))

    begins = jnp.arange(batch // size, dtype=jnp.int32) * size
    return jax.lax.map(attend_part, begins).reshape(case.q.shape)


def _by_nodes(attend: Callable[[AttentionCall], Array], case: AttentionCall) -> Float[Array, "b k r c"]:
    """Runs `attend` on some nodes at a time, where requests have too many; the last part may hold some again."""
    batch, heads, _, size = case.q.shape
    nodes = case.nodes
    width = max(MAX_SCORES_BYTES // (scores_size(case) // nodes), 1)
    pieces = -(-nodes // width)
    begins = jnp.minimum(jnp.arange(pieces, dtype=jnp.int32) * width, nodes - width)
    q = case.q.reshape(batch, heads, -1, nodes, size)
    sinks = None if case.sinks is None else case.sinks.reshape(1, heads, -1, nodes, 1)

    def attend_part(begin: Array) -> Float[Array, "b k g w c"]:
        def some(rows: Array, axis: int) -> Array:
            return jax.lax.dynamic_slice_in_dim(rows, begin, width, axis=axis)

        part = dataclasses.replace(
            case,
            q=some(q, 3).reshape(batch, heads, -1, size),
            visible=some(case.visible, 1),
            first=None if case.first is None else some(case.first, 1),
            count=None,
            sinks=None if sinks is None else some(sinks, 3).reshape(1, heads, -1, 1),
        )
        return attend(part).reshape(batch, heads, -1, width, size)

    parts = jax.lax.map(attend_part, begins)
    place = jnp.minimum(jnp.arange(nodes, dtype=jnp.int32) // width, pieces - 1)
    within = jnp.arange(nodes, dtype=jnp.int32) - begins[place]
    return jnp.moveaxis(parts[place, :, :, :, within], 0, 3).reshape(case.q.shape)
