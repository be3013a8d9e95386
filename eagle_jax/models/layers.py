"""The pieces every decoder is made of. Parameters keep HuggingFace's names and shapes: weights are `[out, in]`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.models.layout import EMBEDDING_STRIPS, GATE_UP, WEIGHT_STRIPS
from eagle_jax.models.products import contract, matmul
from eagle_jax.models.strips import Strips, outputs_of


def activation_dtype(weights: DTypeLike) -> np.dtype:
    """Dtype between the layers: the weights', but float32 on CPU, where nothing but products is fast in bfloat16."""
    return np.dtype(jnp.float32) if jax.default_backend() == "cpu" else np.dtype(weights)


class Linear(nn.Module):
    """Affine map over the last axis; the result has the dtype of `x`, or `result`.

    The parameter is `weight [.., in]` as stored, or `kernel [in, ..]` where `layout.for_decoding` turns it, either of
    which may be a `QuantArray`; or `weight_strips`.
    """

    features: int | tuple[int, ...]
    use_bias: bool = False
    dtype: DTypeLike = jnp.float32
    result: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*rows i"]) -> Float[Array, "..."]:
        shape = (self.features,) if isinstance(self.features, int) else self.features
        if self.has_variable("params", WEIGHT_STRIPS):
            out = matmul(x, self.get_variable("params", WEIGHT_STRIPS))
        elif self.has_variable("params", "kernel"):
            out = contract(x, self.get_variable("params", "kernel"), 0)
        else:
            out = matmul(x, self.param("weight", nn.initializers.normal(0.02), (*shape, x.shape[-1]), self.dtype))
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, shape, self.dtype)
            out = out + bias.astype(jnp.float32).reshape((1,) * (out.ndim - bias.ndim) + bias.shape)
        return out.astype(self.result or x.dtype)


class RMSNorm(nn.Module):
    """`x / rms(x) * scale`, computed in float32; `plus_one` multiplies by `1 + scale` (Gemma)."""

    eps: float
    dtype: DTypeLike = jnp.float32
    plus_one: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*rows h"]) -> Float[Array, "*rows h"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        if self.plus_one:
            return (wide * (1 + scale.astype(jnp.float32)).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)
        return wide.astype(x.dtype) * scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


class Embedding(nn.Module):
    """Token table, also the output matrix where embeddings are tied, and then perhaps in strips."""

    vocab_size: int
    hidden_size: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        if self.has_variable("params", EMBEDDING_STRIPS):
            self.embedding = self.get_variable("params", EMBEDDING_STRIPS)
        else:
            shape = (self.vocab_size, self.hidden_size)
            self.embedding = self.param("embedding", nn.initializers.normal(0.02), shape, self.dtype)

    def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        table = self.embedding
        taken = outputs_of(table, tokens) if isinstance(table, Strips) else jnp.take(table, tokens, axis=0)
        return taken.astype(activation_dtype(self.dtype))

    def attend(self, hidden: Float[Array, "b n h"]) -> Float[Array, "b n v"]:
        """Logits by the transposed table, in float32."""
        return matmul(hidden, self.embedding)


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`; `gelu` puts GELU, by tanh, in silu's place (Gemma)."""

    hidden_size: int
    intermediate_size: int
    use_bias: bool
    dtype: DTypeLike = jnp.float32
    gelu: bool = False

    def setup(self):
        if self.has_variable("params", GATE_UP):
            self.gate_up_proj = Linear((2, self.intermediate_size), self.use_bias, self.dtype)
        else:
            self.gate_proj = Linear(self.intermediate_size, self.use_bias, self.dtype)
            self.up_proj = Linear(self.intermediate_size, self.use_bias, self.dtype)
        self.down_proj = Linear(self.hidden_size, self.use_bias, self.dtype)

    def __call__(self, x: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        if self.has_variable("params", GATE_UP):
            both = self.gate_up_proj(x)
            gate, up = both[..., 0, :], both[..., 1, :]
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj((nn.gelu(gate, approximate=True) if self.gelu else nn.silu(gate)) * up)
