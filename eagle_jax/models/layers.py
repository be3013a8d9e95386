"""The pieces every decoder is made of. Parameters keep HuggingFace's names and shapes: weights are `[out, in]`."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.layout import GATE_UP


def parameter(module: nn.Module, name: str, init: Any, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """Returns a parameter of some shape: an array, or a quantized or packed weight.

    Raises:
        ValueError: what is there has another shape.
    """
    if not module.has_variable("params", name):
        return module.param(name, init, shape, dtype)
    value = module.get_variable("params", name)
    if value.shape != shape:
        raise ValueError(f"{'/'.join(module.path)}/{name} has shape {value.shape}; expected {shape}")
    return value


class Linear(nn.Module):
    """Affine map over the last axis; the result has the dtype of `x`, or `result`."""

    features: int | tuple[int, ...]
    use_bias: bool = False
    dtype: DTypeLike = jnp.float32
    result: DTypeLike | None = None
    init: Any = nn.initializers.normal(0.02)

    @nn.compact
    def weights(self, inputs: int) -> ops.Affine:
        shape = (self.features,) if isinstance(self.features, int) else self.features
        weight = parameter(self, "weight", self.init, (*shape, inputs), self.dtype)
        bias = self.param("bias", nn.initializers.zeros, shape, self.dtype) if self.use_bias else None
        return ops.Affine(weight, bias)

    def __call__(self, x: Float[Array, "*rows i"], num_valid: Int[Array, ""] | None = None) -> Float[Array, "..."]:
        return ops.linear(x, self.weights(x.shape[-1]), num_valid=num_valid, dtype=self.result)


class RMSNorm(nn.Module):
    """`x / rms(x) * scale`, computed in float32; `plus_one` multiplies by `1 + scale` (Gemma); `wide` as in `Norm`."""

    eps: float
    dtype: DTypeLike = jnp.float32
    plus_one: bool = False
    wide: bool = False

    @nn.compact
    def weights(self, size: int) -> ops.Norm:
        scale = self.param("scale", nn.initializers.ones, (size,), self.dtype)
        return ops.Norm(scale, self.eps, self.plus_one, self.wide)

    def __call__(self, x: Float[Array, "*rows h"]) -> Float[Array, "*rows h"]:
        return ops.rms_norm(x, self.weights(x.shape[-1]))


def norm(config: LlamaConfig, dtype: DTypeLike) -> RMSNorm:
    """Makes a norm of the family's kind."""
    return RMSNorm(config.rms_norm_eps, dtype, plus_one=config.norm_plus_one, wide=config.norms == "around")


def scaled(x: Float[Array, "*rows h"], factor: float, dtype: DTypeLike) -> Float[Array, "*rows h"]:
    """Computes `x` times a factor that is rounded to `dtype`, in float32."""
    if factor == 1:
        return x
    return (x.astype(jnp.float32) * jnp.asarray(factor, dtype).astype(jnp.float32)).astype(x.dtype)


class Embedding(nn.Module):
    """Token table, also the output matrix where embeddings are tied."""

    vocab_size: int
    hidden_size: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        shape = self.vocab_size, self.hidden_size
        self.embedding = parameter(self, "embedding", nn.initializers.normal(0.02), shape, self.dtype)

    def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        return ops.embed(self.embedding, tokens, ops.activation_dtype(self.dtype))

    def attend(self, hidden: Float[Array, "b n h"], num_valid: Int[Array, ""] | None = None) -> Float[Array, "b n v"]:
        """Computes logits by the transposed table, in float32."""
        return ops.linear(hidden, ops.Affine(self.embedding), num_valid=num_valid, dtype=jnp.float32)


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`; `gelu` puts GELU in silu's place (Gemma).

    As a channel mixer it is called with the residual stream and the norms before and after it, and gives the stream
    with its part, times `multiplier`, added.
    """

    hidden_size: int
    intermediate_size: int
    use_bias: bool
    dtype: DTypeLike = jnp.float32
    gelu: bool = False
    multiplier: float = 1.0

    def setup(self):
        if self.has_variable("params", GATE_UP):
            self.gate_up_proj = Linear((2, self.intermediate_size), self.use_bias, self.dtype)
        else:
            self.gate_proj = Linear(self.intermediate_size, self.use_bias, self.dtype)
            self.up_proj = Linear(self.intermediate_size, self.use_bias, self.dtype)
        self.down_proj = Linear(self.hidden_size, self.use_bias, self.dtype)

    def __call__(
        self, x: Float[Array, "b n h"], norms: tuple[ops.Norm | None, ops.Norm | None], num_valid: Int[Array, ""]
    ) -> Float[Array, "b n h"]:
        return ops.mlp_block(x, self.weights(*norms), num_valid)

    def weights(self, norm: ops.Norm | None, post_norm: ops.Norm | None = None) -> ops.MLPWeights:
        if self.has_variable("params", GATE_UP):
            gate_up = self.gate_up_proj.weights(self.hidden_size)
        else:
            gate_up = self.gate_proj.weights(self.hidden_size), self.up_proj.weights(self.hidden_size)
        down = self.down_proj.weights(self.intermediate_size)
        return ops.MLPWeights(norm, gate_up, down, post_norm, self.gelu, self.multiplier)
