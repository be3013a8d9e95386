"""The arguments of a tree attention, and the online softmax that its backends share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.precision import precision
from eagle_jax.ops.types import KV, CachedKV
from eagle_jax.struct import pytree, static

# Score of masked keys, and initial maximum of a row. The maximum is larger, so that masked keys have weight 0 even in
# rows that have not attended to any key.
MASKED_SCORE, INITIAL_MAX = float(jnp.finfo(jnp.float32).min), -1e30

# State of each row: the maximum score, the sum of the weights, the weighted sum of the values; float32.
SoftmaxState = tuple[Float[Array, "*b r 1"], Float[Array, "*b r 1"], Float[Array, "*b r c"]]


@pytree
class AttentionCall:
    """One call of tree attention: `n` fresh tokens of each of `b` requests attend to their prefix and to each other.

    Query heads that share keys (GQA) are rows of one kv head: row `g n + i` is the head's query g at node i, and keys
    are read once for the group.

    Attributes:
        q: queries, rotated and scaled (r rows: queries of a kv head times nodes).
        fresh: keys and values of the fresh tokens (m rows; earlier levels of a drafted tree come first).
        visible: which fresh rows each node attends to: its ancestors and itself, within its window. Fresh rows
            beyond its columns come in groups of `n`, and node i attends to the i-th row of each group (a head's own
            earlier steps in training); only the reference supports them.
        prefix: keys and values of the cache; positions from `length` on hold arbitrary finite numbers.
        length: committed positions of each request; every node attends to all of them, within its window.
        first: first position that each node attends to (sliding window, may be negative); None is 0.
        softcap: scores become `softcap * tanh(score / softcap)` (Gemma 2); None leaves them.
        cache_rows: row of the cache of each request; None: the cache has one row per request, in order.
        count: leading nodes of each request that are not padding; results of padding are arbitrary. None is all.
        sinks: for each row a logit that joins its softmax without a value (gpt-oss), or None.
    """

    q: Float[Array, "b k r c"]
    fresh: KV
    visible: Bool[Array, "b n m"]
    prefix: CachedKV
    length: Int[Array, "b"]
    first: Int[Array, "b n"] | None
    softcap: float | None = static()
    cache_rows: Int[Array, "b"] | None = None
    count: Int[Array, "b"] | None = None
    sinks: Float[Array, "1 k r 1"] | None = None

    @property
    def nodes(self) -> int:
        """Number of fresh tokens of a request."""
        return self.visible.shape[1]

    @property
    def num_visible(self) -> int:
        """Number of fresh rows that `visible` has a column for."""
        return self.visible.shape[2]

    @property
    def group(self) -> int:
        """Number of query heads of a kv head."""
        return self.q.shape[2] // self.nodes

    @property
    def slots(self) -> int:
        """Number of cache positions, used or not."""
        return self.prefix[0].shape[2]

    def __str__(self) -> str:
        batch, heads, _, size = self.q.shape
        window = "" if self.first is None else ", sliding window"
        shape = f"{batch} x {self.nodes} nodes, {self.slots} slots, {heads} x {self.group} heads of {size}"
        return f"{shape}, {self.q.dtype}{window}{'' if self.sinks is None else ', sinks'}"

    def begin(self) -> "SoftmaxState":
        """Returns the state of each row before any key: empty, or with its sink, of weight 1."""
        top, total, mixed = empty_state(self.q.shape)
        if self.sinks is None:
            return top, total, mixed
        return jnp.broadcast_to(self.sinks, top.shape), jnp.ones_like(total), mixed


# Computes the attention `[b k r c]` of a call, in the dtype of its queries. A backend raises NotImplementedError, with
# the reason, for a call that it does not support.
Backend = Callable[[AttentionCall], Float[Array, "b k r c"]]


def empty_state(shape: tuple[int, ...]) -> SoftmaxState:
    """Returns the initial state of rows `[.., r, c]`."""
    one = (*shape[:-1], 1)
    return jnp.full(one, INITIAL_MAX, jnp.float32), jnp.zeros(one, jnp.float32), jnp.zeros(shape, jnp.float32)


def scores(q: Float[Array, "*b r c"], keys: Float[Array, "*b s c"], softcap: float | None) -> Float[Array, "*b r s"]:
    """Computes the products of queries and keys, multiplied in the keys' dtype and accumulated in float32."""
    products = jnp.einsum(
        "...rc,...sc->...rs",
        q.astype(keys.dtype),
        keys,
        precision=precision(keys.dtype),
        preferred_element_type=jnp.float32,
    )
    return products if softcap is None else jnp.tanh(products / softcap) * softcap


def add_keys(sums: SoftmaxState, masked_scores: Float[Array, "*b r s"], values: Float[Array, "*b s c"]) -> SoftmaxState:
    """Adds further keys to the state: the online softmax of Milakov and Gimelshein (2018).

    The maximum cancels out in the result, so no gradient goes through it.

    Args:
        masked_scores: scores, `MASKED_SCORE` for masked keys.
    """
    top, total, mixed = sums
    new = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(masked_scores, axis=-1, keepdims=True)))
    weights, scale_down = jnp.exp(masked_scores - new), jnp.exp(top - new)
    more = jnp.einsum(
        "...rs,...sc->...rc",
        weights.astype(values.dtype),
        values,
        precision=precision(values.dtype),
        preferred_element_type=jnp.float32,
    )
    return new, total * scale_down + jnp.sum(weights, axis=-1, keepdims=True), mixed * scale_down + more


def merged(top: Float[Array, "p *b r"], total: Float[Array, "p *b r"], mixed: Float[Array, "p *b r c"]) -> Array:
    """Returns the attention over `p` parts with states of their own, each weighted by its log-sum-exp.

    `mixed` of a part without keys may hold anything.
    """
    share = jnp.where(total > 0, jnp.exp(top - jnp.max(top, axis=0, keepdims=True)), 0)
    parts = jnp.where((total > 0)[..., None], mixed * share[..., None], 0)
    return jnp.sum(parts, axis=0) / jnp.sum(total * share, axis=0)[..., None]
