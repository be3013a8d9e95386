"""A pass of an EAGLE-1 head as one operation of machine code of ours, where the head is what that is made for.

A head of one layer whose halves are each one operation (`models.halves`). Its numbers are those of the parts, up to
rounding. It has no gradient.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.config import EagleConfig
from eagle_jax.kernels import native
from eagle_jax.kernels.native.given import ChainOf, Gated, HeadWeights, Seen
from eagle_jax.models import halves
from eagle_jax.models.cache import KV
from eagle_jax.models.layout import WEIGHT_STRIPS
from eagle_jax.models.strips import Strips

Params = Mapping[str, Any]


def head(
    embeddings: Float[Array, "b n h"],
    features: Float[Array, "b n h"],
    params: Params,
    config: EagleConfig,
    seen: Seen,
    *,
    logits: bool,
) -> tuple[Float[Array, "b n h"], KV, Float[Array, "b n d"]] | None:
    """Outputs, keys and values, and logits, none of them if they are not asked for; None if the machine code is not
    for it.

    Args:
        params: of the head, in the layout for decoding.
    """
    if {part.dtype for part in (embeddings, features)} != {jnp.dtype(jnp.float32)}:
        return None
    weights = _weights(params, config, features.shape, seen)
    if weights is None or embeddings.shape != features.shape:
        return None
    if logits and not weights.output.size:
        return None
    return native.head(embeddings, features, weights if logits else weights._replace(output=weights.output[:0]), seen)


def chain(
    given: ChainOf, params: Params, config: EagleConfig, seen: Seen
) -> tuple[Float[Array, "1 d"], Int[Array, "1 d"]] | None:
    """Scores and tokens of a chain of guesses (`native.guesses`); None if the machine code is not for it."""
    size = given.guess.shape[1]
    one = seen._replace(turns=(seen.turns[0][:, :1], seen.turns[1][:, :1]), visible=seen.visible[:, :, :1])
    weights = _weights(params, config, (1, 1, size), one)
    if weights is None or not weights.output.size or given.guess.dtype != jnp.float32 or given.sharpness <= 0:
        return None
    return native.chain(given, weights, seen)


def _weights(params: Params, config: EagleConfig, shape: tuple[int, ...], seen: Seen) -> HeadWeights | None:
    """Weights for rows of this shape, without an output matrix where the head has none that fits; None if the machine
    code is not for it.
    """
    layer, size, layers = params.get("layers_0", {}), shape[2], config.layers
    if layers.num_hidden_layers != 1 or not {"self_attn", "mlp", "post_attention_layernorm"} <= set(layer):
        return None
    mixing = halves.mixing_weights(None, layer["self_attn"], shape, shape, seen)
    gated = halves.mlp_weights(layer["post_attention_layernorm"], layer["mlp"], size)
    fc, output = _whole(params.get("fc", {}), "bias"), _whole(params.get("lm_head", {}))
    if mixing is None or gated is None or fc is None or fc.shape != (size, 2 * size):
        return None
    scale, gate_up, down = gated
    data = fc.data, mixing.qkv, gate_up.data
    if len({part.dtype for part in data}) > 1:
        return None
    bias = params["fc"].get("bias", jnp.zeros(0)).astype(jnp.float32)
    said = fc.data[:0] if output is None or output.dtype != fc.dtype else output.data
    numbers = layers.rms_norm_eps, down.shape[1], layers.head_dim**-0.5
    return HeadWeights(fc.data, bias, mixing, Gated(scale, gate_up.data, down.data), said, *numbers)


def _whole(linear: Params, *beside: str) -> Strips | None:
    """The matrix of a linear map, if it is nothing but whole strips of floats, and nothing else is beside it."""
    strips, known = linear.get(WEIGHT_STRIPS), {WEIGHT_STRIPS, *beside}
    fits = isinstance(strips, Strips) and strips.is_whole and len(strips.shape) == 2 and set(linear) <= known
    return strips if fits else None
