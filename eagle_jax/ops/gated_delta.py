"""The gated delta rule over trees (Yang, Kautz and Hatamizadeh 2024, Gated Delta Networks, equation 10).

Along a chain, with keys and queries of length 1, a decay `g <= 0` and a rate `beta` for each token:

    S_t = exp(g_t) S_(t-1) + k_t u_t^T        u_t = beta_t (v_t - exp(g_t) S_(t-1)^T k_t)        out_t = S_t^T q_t

Written out for a node i of a tree after a state S, with G_i the sum of g over its ancestors and itself:

    u_i   = beta_i (v_i - exp(G_i) S^T k_i - sum over ancestors j of exp(G_i - G_j) (k_j . k_i) u_j)
    out_i = exp(G_i) S^T q_i + sum over ancestors j and i itself of exp(G_i - G_j) (k_j . q_i) u_j

Nodes come after their ancestors, so the first line is one triangular system for all nodes: no node has a state of its
own. The state after a path follows from S and the path's k, u and g alone.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.struct import pytree

CHUNK = 64  # tokens of a chain that are computed together
_EXACT = jax.lax.Precision.HIGHEST


@pytree
class DeltaRows:
    """The fresh tokens' part of the state of a gated delta layer, in float32 (j key heads, h value heads).

    Attributes:
        k, u, g: as above.
        inputs: inputs of the convolution, `[b 1 n e]`.
    """

    k: Float[Array, "b j n c"]
    u: Float[Array, "b h n d"]
    g: Float[Array, "b h n 1"]
    inputs: Float[Array, "b 1 n e"]


def gated_delta(
    q: Float[Array, "b j n c"],
    k: Float[Array, "b j n c"],
    v: Float[Array, "b h n d"],
    g: Float[Array, "b h n"],
    beta: Float[Array, "b h n"],
    memory: Float[Array, "b h c d"],
    ancestors: Bool[Array, "b n n"],
) -> tuple[Float[Array, "b h n d"], Float[Array, "b h n d"]]:
    """Computes `out` and `u` of all nodes; everything is float32.

    Args:
        q, k: by key head; each serves h / j consecutive value heads.
        memory: the state S of the committed tokens.
        ancestors: ancestors of each node, itself included; no node comes before its ancestors.
    """
    heads = v.shape[1] // k.shape[1]
    total = jnp.einsum("bnm,bhm->bhn", ancestors.astype(g.dtype), g, precision=_EXACT)
    seen = ancestors[:, None]
    decay = jnp.exp(jnp.where(seen, total[..., :, None] - total[..., None, :], -jnp.inf))
    of_state = jnp.exp(total)[..., None]

    def by_value_head(x: Array) -> Array:
        return jnp.repeat(x, heads, axis=1)

    def products(x: Float[Array, "b j n c"]) -> Float[Array, "b h n n"]:
        return by_value_head(jnp.einsum("bjnc,bjmc->bjnm", x, k, precision=_EXACT)) * decay

    # one product: it reads the state once, and XLA:CPU is slow with a single row
    both = by_value_head(jnp.concatenate([k, q], axis=2))
    of_k, of_q = jnp.split(jnp.einsum("bhnc,bhcd->bhnd", both, memory, precision=_EXACT), 2, axis=2)
    rate = beta[..., None]
    u = jnp.einsum("bhnm,bhmd->bhnd", unit_inverse(rate * products(k)), rate * (v - of_k * of_state), precision=_EXACT)
    return of_q * of_state + jnp.einsum("bhnm,bhmd->bhnd", products(q), u, precision=_EXACT), u


def gated_delta_chain(
    q: Float[Array, "b j n c"],
    k: Float[Array, "b j n c"],
    v: Float[Array, "b h n d"],
    g: Float[Array, "b h n"],
    beta: Float[Array, "b h n"],
    memory: Float[Array, "b h c d"],
) -> tuple[Float[Array, "b h n d"], Float[Array, "b h n d"]]:
    """Computes `gated_delta` of a chain of n tokens.

    Chunks of `CHUNK` tokens pass the state on, so memory is linear in n; products of all pairs of tokens would take n^2
    numbers per head.
    """
    n = v.shape[2]
    size = min(CHUNK, n)
    count = -(-n // size)

    def chunks(x: Array) -> Array:
        """Returns `[chunks, b, heads, size, ..]`; tokens of zeros at the end change no state and add nothing."""
        padded = jnp.pad(x, ((0, 0), (0, 0), (0, count * size - n)) + ((0, 0),) * (x.ndim - 3))
        return jnp.moveaxis(padded.reshape(*x.shape[:2], count, size, *x.shape[3:]), 2, 0)

    def whole(x: Float[Array, "m b h t d"]) -> Float[Array, "b h n d"]:
        return jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], -1, x.shape[-1])[:, :, :n]

    chain = jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool))[None], (len(v), size, size))
    every = jnp.full(len(v), size, jnp.int32)

    def read(memory: Array, tokens: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        q, k, v, g, beta = tokens
        out, u = gated_delta(q, k, v, g, beta, memory, chain)
        return memory_after(memory, k, u, g[..., None], every), (out, u)

    _, (out, u) = jax.lax.scan(read, memory, tuple(map(chunks, (q, k, v, g, beta))))
    return whole(out), whole(u)


def unit_inverse(lower: Float[Array, "b h n n"]) -> Float[Array, "b h n n"]:
    """Returns the inverse of `I + L` for the strictly lower triangle L of `lower`.

    Blocks on the diagonal are inverted two at a time, `inv([[A, 0], [C, B]]) = [[inv A, 0], [-inv B C inv A, inv B]]`:
    log2(n) products. LAPACK's solver has its own threads, which wait for time slices while XLA's are busy.
    """
    batch, heads, n, _ = lower.shape
    size = 1 << (n - 1).bit_length()
    lower = jnp.pad(lower, ((0, 0), (0, 0), (0, size - n), (0, size - n)))
    inverse = jnp.ones((batch, heads, size, 1, 1), lower.dtype)  # of each block
    for width in (1 << level for level in range(size.bit_length() - 1)):
        pairs = size // (2 * width)
        blocks = lower.reshape(batch, heads, pairs, 2 * width, pairs, 2 * width)
        below = jnp.diagonal(blocks[:, :, :, width:, :, :width], axis1=2, axis2=4)  # [b h width width pairs]
        upper_left, lower_right = inverse[:, :, ::2], inverse[:, :, 1::2]
        product = jnp.einsum("bhpij,bhjkp,bhpkl->bhpil", lower_right, below, upper_left, precision=_EXACT)
        top = jnp.concatenate([upper_left, jnp.zeros_like(product)], axis=-1)
        inverse = jnp.concatenate([top, jnp.concatenate([-product, lower_right], axis=-1)], axis=-2)
    return inverse[:, :, 0, :n, :n]


def memory_after(
    memory: Float[Array, "b h c d"],
    k: Float[Array, "b j n c"],
    u: Float[Array, "b h n d"],
    g: Float[Array, "b h n 1"],
    count: Int[Array, "b"],
) -> Float[Array, "b h c d"]:
    """Returns the state after the first `count` tokens of a path; with count 0 the same bits."""
    counts = (jnp.arange(k.shape[2], dtype=jnp.int32)[None] < count[:, None])[:, None, :, None]
    total = jnp.cumsum(jnp.where(counts, g, 0), axis=2)
    left = jnp.where(counts, jnp.exp(total[:, :, -1:] - total), 0)
    heads = u.shape[1] // k.shape[1]
    # tokens beyond `count` may be nan, and 0 * nan is nan
    keys, values = jnp.where(counts, jnp.repeat(k, heads, axis=1), 0), jnp.where(counts, u, 0)
    # keeps XLA from fusing all of the above into the elementwise product of a single token
    keys, values, decay = jax.lax.optimization_barrier((keys * left, values, jnp.exp(total[:, :, -1:])))
    return memory * decay + jnp.einsum("bhnc,bhnd->bhcd", keys, values, precision=_EXACT)


def convolved(
    inputs: Float[Array, "b n e"],
    window: Float[Array, "b w e"],
    weight: Float[Array, "e k"],
    earlier: Int[Array, "b n w"],
) -> Float[Array, "b n e"]:
    """Computes a causal convolution along the path of each node, and SiLU, in float32; k = w + 1.

    Args:
        window: inputs of the last committed tokens, latest last.
        earlier: rows of `[window, inputs]` that precede each node on its path, nearest first.
    """
    window, inputs, by_place = window.astype(jnp.float32), inputs.astype(jnp.float32), weight.astype(jnp.float32).T
    rows = jnp.concatenate([window, inputs], axis=1)
    total = inputs * by_place[None, -1:]
    for back in range(earlier.shape[2]):
        total = total + jnp.take_along_axis(rows, earlier[:, :, back, None], axis=1) * by_place[None, -2 - back, None]
    return jax.nn.silu(total)


def rows_before(n: int, size: int) -> Int[Array, "1 n w"]:
    """Computes `earlier_rows` of a chain of n tokens."""
    places = jnp.arange(n, dtype=jnp.int32)[None, :, None]
    return size + places - 1 - jnp.arange(size, dtype=jnp.int32)[None, None]


def earlier_rows(ancestors: Bool[Array, "b n n"], size: int) -> Int[Array, "b n w"]:
    """Returns the `size` rows before each node on its path, nearest first, as indices into `[window, nodes]`."""
    depth = jnp.sum(ancestors, axis=-1, dtype=jnp.int32) - 1
    target_depth = depth[:, :, None] - 1 - jnp.arange(size, dtype=jnp.int32)[None, None]  # [b n w]
    is_match = ancestors[:, :, None, :] & (depth[:, None, None, :] == target_depth[..., None])
    node = jax.lax.argmax(is_match, 3, jnp.int32)
    return size + jnp.where(target_depth >= 0, node, target_depth)
