"""The arguments of operations.

Letters of shapes, here and in the other modules: b batch, n tree nodes, m fresh rows, s cache slots, h hidden size (or
heads, in front of c), k kv heads, g query heads of a kv head, c head size, r rows, i inputs, o outputs, v vocabulary,
u rows of a cache (the batch may be some of them), y requests (the batch unless they share a row), f tokens of such a
row.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.struct import pytree, static

KV = tuple[Float[Array, "b k _ c"], Float[Array, "b k _ c"]]
CachedKV = tuple[Float[Array, "u k s c"], Float[Array, "u k s c"]]
LayerRows = Any  # the fresh tokens' part of a layer's state: KV, or another pytree of arrays `[b _ n _]`
CosSin = tuple[Float[Array, "b n half"], Float[Array, "b n half"]]


class Affine(NamedTuple):
    """`x @ weight.T + bias`.

    Attributes:
        weight: `[.., in]`, an array or `QuantArray`, possibly packed by `packing.pack`.
        bias: array of the weight's leading shape, or None.
    """

    weight: Any
    bias: Array | None = None


@pytree
class Norm:
    """Parameters of a root mean square norm.

    Attributes:
        scale: factor of each number.
        eps: added to the mean square.
        plus_one: multiply by `1 + scale` (Gemma).
        wide: multiply by the scale before the result is rounded to the dtype of `x` (Gemma 4).
    """

    scale: Float[Array, "h"]
    eps: float = static()
    plus_one: bool = static(default=False)
    wide: bool = static(default=False)


@pytree
class AttentionWeights:
    """Parameters of the attention half of a decoder layer.

    Attributes:
        norm: before the projections; None leaves the input as it is.
        qkv: one map to `[k, g + 2, c]` (for each kv head its queries, its key, its value), or three maps. With gates
            each query is followed by its gate, 2 g for g. With two maps values are the keys before norm and rotation;
            with one in a tuple the layer has no keys, and tokens attend to `draft_kv` alone (Gemma 4).
        o: output projection.
        q_norm, k_norm: over the axis in `norms_over`; or None.
        v_norm: over each value head; or None.
        post_norm: over the output, before the residual sum (Gemma); or None.
        sinks: for each query head a logit that joins its softmax without a value (gpt-oss); or None.
        norms_over: "head" before the rotation, "rotated_head" after it, or the whole "projection".
        gated: each head's queries are followed by the logits of a gate, whose sigmoid multiplies the head's output
            (Qwen3.5).
        interleaved: the rotation pairs neighbours, not halves.
        multiplier: factor on the output before the residual sum (Granite).
    """

    norm: Norm | None
    qkv: Affine | tuple[Affine, ...]
    o: Affine
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    post_norm: Norm | None = None
    sinks: Float[Array, "h"] | None = None
    norms_over: str = static(default="head")
    gated: bool = static(default=False)
    interleaved: bool = static(default=False)
    multiplier: float = static(default=1.0)

    @property
    def is_plain(self) -> bool:
        """Whether the layer differs from Llama's in norms of heads and `post_norm` at most."""
        like_llama = self.sinks is None and self.v_norm is None and self.norms_over == "head" and not self.gated
        return like_llama and not self.interleaved and self.multiplier == 1


@pytree
class MLPWeights:
    """Parameters of the MLP half of a decoder layer.

    Attributes:
        norm: before the MLP; None leaves the input as it is.
        gate_up: one map to `[2, inner]`, or two maps.
        down: output projection.
        post_norm: over the output, before the residual sum (Gemma); or None.
        gelu: the activation is GELU, by tanh (Gemma); else SiLU.
        multiplier: factor on the output before the residual sum (Granite).
    """

    norm: Norm | None
    gate_up: Affine | tuple[Affine, Affine]
    down: Affine
    post_norm: Norm | None = None
    gelu: bool = static(default=False)
    multiplier: float = static(default=1.0)


@pytree
class FlatRows:
    """The layout of several requests' fresh tokens in a single row, one request after the other without padding.

        row       a0 a1 a2 c0 d0 d1  .  .      request 1 has no token
        begin     0  3  3  4                   count  3  0  1  2

    Attributes:
        request: request of each token of the row; arbitrary for padding, which comes last.
        begin, count: the first token of each request, and its number of tokens.
        max_count: upper bound of `count`.
    """

    request: Int[Array, "f"]
    begin: Int[Array, "b"]
    count: Int[Array, "b"]
    max_count: int = static()

    @property
    def token_indices(self) -> Int[Array, "b n"]:
        """Row index of each token of each request; arbitrary where `is_token` is false."""
        index = self.begin[:, None] + jnp.arange(self.max_count, dtype=jnp.int32)[None]
        return jnp.minimum(index, len(self.request) - 1)

    def in_row(self, rows: Array) -> Array:
        """Gathers rows of requests, `[b n ..]`, into the single row, `[f ..]`; zeros at padding."""
        index = jnp.arange(len(self.request), dtype=jnp.int32)
        request_row = jnp.clip(index - self.begin[self.request], 0, self.max_count - 1)
        is_row = (index < jnp.sum(self.count)).reshape(-1, *(1,) * (rows.ndim - 2))
        return jnp.where(is_row, rows[self.request, request_row], 0)

    def visible_by_request(self, visible: Bool[Array, "1 f f"]) -> Bool[Array, "b n n"]:
        """Returns which tokens of its request each token attends to; padding attends to itself."""
        mask = visible[0][self.token_indices[:, :, None], self.token_indices[:, None, :]] & self.is_token[:, None, :]
        return mask | jnp.eye(self.max_count, dtype=bool)[None]  # a softmax over no key would be NaN

    @property
    def is_token(self) -> Bool[Array, "b n"]:
        """Which of `token_indices` are tokens of the request."""
        return jnp.arange(self.max_count, dtype=jnp.int32)[None] < self.count[:, None]


@pytree
class AttentionInputs:
    """Positions and masks of the fresh tokens of a forward pass, shared by layers of one kind.

    Attributes:
        cos_sin: rotary cosines and sines of the fresh tokens.
        visible: which fresh rows each token attends to, itself included: rows of `draft_kv` first, then its own.
        length: committed positions of each request.
        first: first committed position that each token attends to (sliding window); None is 0.
        num_valid: number of leading rows of `[b * n]` that are not padding, whose results are not read.
        cache_rows: row of the cache of each request; None: the cache has one row per request, in order.
        flat: layout of the requests' tokens if they share one row of the pass (b = 1); `length` and `cache_rows` are
            still per request. None: each request has a row.
        query_scale: factor on the rotated queries (Ministral 3); None is 1.
    """

    cos_sin: CosSin
    visible: Bool[Array, "b n m"]
    length: Int[Array, "y"]
    first: Int[Array, "b n"] | None
    num_valid: Int[Array, ""]
    cache_rows: Int[Array, "y"] | None = None
    flat: FlatRows | None = None
    query_scale: Float[Array, "b n"] | None = None
