"""What every backend of tree attention is given and gives, and the arithmetic that they share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.precision import precision
from eagle_jax.ops.types import KV
from eagle_jax.struct import pytree, static

# Scores that are not seen, and the largest score of rows that have seen nothing yet. The second is the larger, so that
# what is not seen weighs exactly nothing even then.
UNSEEN, NOTHING_SEEN = float(jnp.finfo(jnp.float32).min), -1e30

# Of each row: the largest score so far, the sum of the weights, and the weighted sum of the values; float32.
Sums = tuple[Float[Array, "*b r 1"], Float[Array, "*b r 1"], Float[Array, "*b r c"]]


@pytree
class Case:
    """One call: `n` fresh tokens of each of `b` requests over their committed prefix and over each other.

    Query heads that share keys (GQA) are rows of one kv head: row `g n + i` is the head's query g at node i. So keys
    are read once for all of them and never repeated.

    Attributes:
        q: queries, rotated and scaled (r rows: queries of a kv head times nodes).
        fresh: keys and values of the fresh tokens (m rows: those of earlier levels of a drafted tree come first).
        visible: which fresh rows each node sees: its ancestors and itself, within its window. If it names fewer than
            there are, the others come `n` by `n`, and of each `n` of them node i sees the i-th (training: a head's own
            earlier steps). Only the plain backend does those.
        prefix: keys and values of the cache; slots from `length` on hold any finite numbers.
        length: committed slots of each request; every node sees them all, but for its window.
        first: first slot that each node sees (sliding window, may be negative); None is 0.
        softcap: scores become `softcap * tanh(score / softcap)` (Gemma 2); None leaves them.
    """

    q: Float[Array, "b k r c"]
    fresh: KV
    visible: Bool[Array, "b n m"]
    prefix: KV
    length: Int[Array, "b"]
    first: Int[Array, "b n"] | None
    softcap: float | None = static()

    @property
    def nodes(self) -> int:
        """Fresh tokens of each request."""
        return self.visible.shape[1]

    @property
    def named(self) -> int:
        """Fresh rows that `visible` speaks of."""
        return self.visible.shape[2]

    @property
    def group(self) -> int:
        """Query heads of each kv head."""
        return self.q.shape[2] // self.nodes

    @property
    def slots(self) -> int:
        """Slots of the cache, used or not."""
        return self.prefix[0].shape[2]

    def __str__(self) -> str:
        batch, heads, _, size = self.q.shape
        window = "" if self.first is None else ", sliding window"
        shape = f"{batch} x {self.nodes} nodes, {self.slots} slots, {heads} x {self.group} heads of {size}"
        return f"{shape}, {self.q.dtype}{window}"


# Weighted values `[b k r c]` of a case, in the dtype of its queries. A backend raises NotImplementedError, with the
# reason, for a case that it cannot do.
Backend = Callable[[Case], Float[Array, "b k r c"]]


def nothing(shape: tuple[int, ...]) -> Sums:
    """Sums of rows `[.., r, c]` that have seen nothing yet."""
    one = (*shape[:-1], 1)
    return jnp.full(one, NOTHING_SEEN, jnp.float32), jnp.zeros(one, jnp.float32), jnp.zeros(shape, jnp.float32)


def scores(q: Float[Array, "*b r c"], keys: Float[Array, "*b s c"], softcap: float | None) -> Float[Array, "*b r s"]:
    """Products of queries and keys, multiplied in the keys' dtype and added up in float32."""
    products = jnp.einsum(
        "...rc,...sc->...rs",
        q.astype(keys.dtype),
        keys,
        precision=precision(keys.dtype),
        preferred_element_type=jnp.float32,
    )
    return products if softcap is None else jnp.tanh(products / softcap) * softcap


def absorb(sums: Sums, seen: Float[Array, "*b r s"], values: Float[Array, "*b s c"]) -> Sums:
    """`sums` with more slots: a softmax that never needs all scores at once (Milakov and Gimelshein 2018).

    The largest score cancels out in the average, so no gradient goes through it.

    Args:
        seen: scores, `UNSEEN` where a row does not see a slot.
    """
    top, total, mixed = sums
    new = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(seen, axis=-1, keepdims=True)))
    weights, kept = jnp.exp(seen - new), jnp.exp(top - new)
    more = jnp.einsum(
        "...rs,...sc->...rc",
        weights.astype(values.dtype),
        values,
        precision=precision(values.dtype),
        preferred_element_type=jnp.float32,
    )
    return new, total * kept + jnp.sum(weights, axis=-1, keepdims=True), mixed * kept + more


def merged(top: Float[Array, "p *b r"], total: Float[Array, "p *b r"], mixed: Float[Array, "p *b r c"]) -> Array:
    """The average over `p` parts whose sums were made apart, each weighed by its log-sum-exp.

    What is in `mixed` of a part that saw nothing does not matter.
    """
    share = jnp.where(total > 0, jnp.exp(top - jnp.max(top, axis=0, keepdims=True)), 0)
    parts = jnp.where((total > 0)[..., None], mixed * share[..., None], 0)
    return jnp.sum(parts, axis=0) / jnp.sum(total * share, axis=0)[..., None]
