"""The pieces every decoder is made of. Parameters keep HuggingFace's names and shapes: weights are `[out, in]`."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.models import halves, norms
from eagle_jax.models.layout import EMBEDDING_STRIPS, GATE_UP, NATIVE_SCALE, WEIGHT_STRIPS
from eagle_jax.models.lookup import rows_of
from eagle_jax.models.products import contract, matmul


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
    """`x / rms(x) * scale`, computed in float32; `plus_one` multiplies by `1 + scale` (Gemma).

    Where `layout.for_decoding` calls the scale `native_scale`, and x is float32, it is machine code of ours.
    """

    eps: float
    dtype: DTypeLike = jnp.float32
    plus_one: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*rows h"]) -> Float[Array, "*rows h"]:
        is_native = self.has_variable("params", NATIVE_SCALE)
        if is_native:
            scale = self.get_variable("params", NATIVE_SCALE)
        else:
            scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.dtype)
        scale = 1 + scale.astype(jnp.float32) if self.plus_one else scale.astype(x.dtype)
        if is_native and x.dtype == jnp.float32:
            rows = x.reshape(-1, x.shape[-1])
            return norms.native_norm(rows, scale, self.eps).reshape(x.shape)
        return norms.by_xla(x, scale, self.eps)


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
        return rows_of(self.embedding, tokens, activation_dtype(self.dtype))

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

    def added(
        self, x: Float[Array, "b n h"], norm: RMSNorm, wanted: Int[Array, ""] | None = None
    ) -> Float[Array, "b n h"]:
        """`x + mlp(norm(x))`; of more rows than are wanted, over all requests, it may be anything finite."""
        if not self.gelu and not norm.plus_one:
            made = halves.mlp(x, held(norm), norm.eps, held(self), wanted)
            if made is not None:
                return made
        return x + self(norm(x))


def held(module: nn.Module) -> Mapping[str, Any]:
    """A module's parameters; none before they are made."""
    return module.variables.get("params", {})
