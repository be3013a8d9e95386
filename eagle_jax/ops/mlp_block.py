"""The MLP half of a decoder layer."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.ops.attention_block import add_residual
from eagle_jax.ops.dispatch import dispatch
from eagle_jax.ops.linear import linear
from eagle_jax.ops.rms_norm import rms_norm
from eagle_jax.ops.types import Affine, MLPWeights


def mlp_block(
    x: Float[Array, "b n h"], weights: MLPWeights, num_valid: Int[Array, ""] | None = None
) -> Float[Array, "b n h"]:
    """Computes `x + down(silu(gate(norm(x))) * up(norm(x)))`.

    Args:
        num_valid: number of leading rows of `[b * n]` that are not padding; results of padding are finite. None is all.
    """
    count = jnp.int32(x.shape[0] * x.shape[1]) if num_valid is None else num_valid
    return dispatch("mlp_block", reference, x, weights, count)


def reference(x: Float[Array, "b n h"], weights: MLPWeights, num_valid: Int[Array, ""]) -> Float[Array, "b n h"]:
    """Computes the block operation by operation."""
    y = feed_forward(x if weights.norm is None else rms_norm(x, weights.norm), weights, num_valid)
    return add_residual(x, y, weights.post_norm, weights.multiplier)


def feed_forward(
    x: Float[Array, "b n h"], weights: MLPWeights, num_valid: Int[Array, ""] | None = None
) -> Float[Array, "b n h"]:
    """Computes `down(silu(gate(x)) * up(x))`, without norms and residual."""
    if isinstance(weights.gate_up, Affine):
        both = linear(x, weights.gate_up, num_valid=num_valid)
        gate, up = both[..., 0, :], both[..., 1, :]
    else:
        gate, up = (linear(x, part, num_valid=num_valid) for part in weights.gate_up)
    activated = jax.nn.gelu(gate, approximate=True) if weights.gelu else jax.nn.silu(gate)
    return linear(activated * up, weights.down, num_valid=num_valid)
