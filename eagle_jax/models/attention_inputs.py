"""Builds the inputs of attention layers about a forward pass's fresh tokens, from positions and ancestors."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.cache import Cache
from eagle_jax.models.rope import cos_sin, query_scale
from eagle_jax.ops import AttentionInputs, FlatRows


def attention_inputs(
    config: LlamaConfig,
    positions: Int[Array, "b n"],
    visible: Bool[Array, "b n m"],
    cache: Cache,
    fresh_positions: Int[Array, "b m"],
    layer: int = 0,
    flat: FlatRows | None = None,
) -> AttentionInputs:
    """Returns the inputs of one layer's attention, the same for all layers of its window and rotary base.

    Args:
        positions: of the fresh tokens; a negative one is padding.
        visible: which fresh rows each token attends to.
        fresh_positions: positions of these rows.
        flat: where the tokens of requests lie that share a row.
    """
    window, rope, head_dim = config.window(layer), config.rope_of(layer), config.layer(layer).head_dim
    first = first_seen(positions, window, config.chunked)
    if flat is None:
        turns = cos_sin(rope, head_dim, positions, cache.rope_length)
    else:  # each token is a row with the length of its request
        by_token = cos_sin(rope, head_dim, positions.T, cache.rope_length[flat.request])
        turns = by_token[0].swapaxes(0, 1), by_token[1].swapaxes(0, 1)
    return AttentionInputs(
        cos_sin=turns,
        visible=visible if first is None else visible & (fresh_positions[:, None] >= first[..., None]),
        length=cache.length,
        cache_rows=cache.rows,
        first=first,
        num_valid=num_valid(positions >= 0),
        flat=flat,
        query_scale=query_scale(config, rope, positions),
    )


def first_seen(positions: Int[Array, "b n"], window: int | None, chunked: bool) -> Int[Array, "b n"] | None:
    """Returns the first position that each token sees: of the sliding window, or of its chunk; None sees all."""
    if window is None:
        return None
    return positions // window * window if chunked else positions - window + 1


def num_valid(valid: Bool[Array, "b n"]) -> Int[Array, ""]:
    """Returns the number of leading rows of `[b * n]` that are not padding.

    All rows of several requests count: padding lies between them.
    """
    batch, n = valid.shape
    if batch != 1 or n == 1:
        return jnp.int32(batch * n)
    return jnp.max(jnp.where(valid[0], jnp.arange(1, n + 1, dtype=jnp.int32), 0))
