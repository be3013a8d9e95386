"""Calls of attention, each with what it should give, computed row by row."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.ops import AttentionCall


@dataclasses.dataclass(frozen=True)
class Asked:
    """A case in words.

    Attributes:
        lengths: committed slots of each request.
        beside: fresh rows of earlier levels.
        chain: every node sees all before it, as in a chunk of a prompt.
        window: slots and fresh rows that a node sees, itself included.
        cache_rows: row of a larger cache that each request has.
    """

    nodes: int
    slots: int
    lengths: tuple[int, ...]
    heads: int = 2
    group: int = 1
    size: int = 16
    beside: int = 0
    chain: bool = False
    window: int | None = None
    softcap: float | None = None
    dtype: str = "float32"
    cache_rows: tuple[int, ...] | None = None


CASES = {
    "a tree of 26, two queries a key": Asked(26, 384, (0, 384, 130), group=2, size=16),
    "one node, four queries a key": Asked(1, 256, (0, 1, 256), heads=1, group=4),
    "a chunk of a prompt": Asked(7, 128, (0, 64), chain=True),
    "a level of a drafted tree, in a window of a cache mostly empty": Asked(
        7, 700, (330, 10, 300), group=2, beside=9, window=90
    ),
    "a chunk of a prompt, of a cache mostly empty": Asked(40, 700, (330, 0, 20), group=2, chain=True),
    "a chunk of a prompt, in a window of such a cache": Asked(40, 700, (330, 200, 300), window=90, chain=True),
    "nothing is committed yet": Asked(3, 384, (0, 0), group=2),
    "60 nodes, bfloat16, softcap": Asked(60, 300, (300, 77), size=32, softcap=3.0, dtype="bfloat16"),
    "rows of a larger cache": Asked(5, 384, (300, 7, 130), group=2, cache_rows=(4, 0, 2)),
    "rows of a larger cache, in a window, mostly empty": Asked(3, 700, (330, 10), window=90, cache_rows=(1, 3)),
    "more rows than a tile": Asked(600, 128, (100,), heads=1, group=2, window=64, chain=True),
}


@functools.cache
def made(asked: Asked) -> AttentionCall:
    rng, batch, fresh = np.random.default_rng(0), len(asked.lengths), asked.beside + asked.nodes

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), asked.dtype)

    cached = batch if asked.cache_rows is None else 1 + max(asked.cache_rows)
    seen = np.tril(np.ones((asked.nodes, asked.nodes), bool))
    if not asked.chain:
        seen = (seen & (rng.random(seen.shape) < 0.3)) | np.eye(asked.nodes, dtype=bool)
    visible = np.concatenate([rng.random((batch, asked.nodes, asked.beside)) < 0.5, np.tile(seen, (batch, 1, 1))], 2)
    lengths = np.asarray(asked.lengths, np.int32)
    first = None if asked.window is None else lengths[:, None] + np.arange(asked.nodes)[None] // 3 - asked.window + 1
    return AttentionCall(
        q=normal(batch, asked.heads, asked.group * asked.nodes, asked.size),
        fresh=tuple(normal(batch, asked.heads, fresh, asked.size) for _ in "kv"),
        visible=jnp.asarray(visible),
        prefix=tuple(normal(cached, asked.heads, asked.slots, asked.size) for _ in "kv"),
        length=jnp.asarray(lengths),
        first=None if first is None else jnp.asarray(first, jnp.int32),
        softcap=asked.softcap,
        cache_rows=None if asked.cache_rows is None else jnp.asarray(asked.cache_rows, jnp.int32),
    )


@functools.cache
def expected(asked: Asked) -> np.ndarray:
    """Row by row, over exactly what it sees, in float64."""
    case = made(asked)
    q, keys, values, old_keys, old_values = (
        np.asarray(part, np.float64) for part in (case.q, *case.fresh, *case.prefix)
    )
    mixed = np.zeros_like(q)
    for b, k, r in np.ndindex(q.shape[:3]):
        node = r % case.nodes
        start = 0 if case.first is None else max(int(case.first[b, node]), 0)
        committed, seen = slice(start, int(case.length[b])), np.asarray(case.visible[b, node])
        row = b if asked.cache_rows is None else asked.cache_rows[b]
        scores = np.concatenate([old_keys[row, k, committed], keys[b, k, seen]]) @ q[b, k, r]
        if case.softcap is not None:
            scores = np.tanh(scores / case.softcap) * case.softcap
        weights = np.exp(scores - scores.max())
        mixed[b, k, r] = weights @ np.concatenate([old_values[row, k, committed], values[b, k, seen]]) / weights.sum()
    return mixed
