"""The pieces every decoder is made of. Parameters keep HuggingFace's names and shapes: weights are `[out, in]`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


def precision(dtype: DTypeLike) -> jax.lax.Precision:
    """float32 means float32: by default TPUs and GPUs multiply it in bfloat16 or TF32, which no comparison survives."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def activation_dtype(weights: DTypeLike) -> np.dtype:
    """Dtype between the layers: the weights', but float32 on CPU, where nothing but products is fast in bfloat16."""
    return np.dtype(jnp.float32) if jax.default_backend() == "cpu" else np.dtype(weights)


def matmul(x: Float[Array, "*rows i"], weight: Float[Array, "o i"]) -> Float[Array, "*rows o"]:
    """`x @ weight.T`, multiplied in the weight's dtype, accumulated and returned in float32."""
    rows = x.reshape(-1, x.shape[-1]).astype(weight.dtype)
    product = _matmul_on_cpu if jax.default_backend() == "cpu" else _matmul
    return product(rows, weight).reshape(*x.shape[:-1], weight.shape[0])


def _matmul(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    return jax.lax.dot_general(
        rows,
        weight,
        (((1,), (1,)), ((), ())),
        precision=precision(weight.dtype),
        preferred_element_type=jnp.float32,
    )


def _matmul_on_cpu(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    """The weight on the left, as it lies in memory: XLA:CPU packs what is on the right at every call.

    A single bfloat16 row falls off the fast path, so it goes as two; then a row of this product does not depend on how
    many rows go with it. (A whole pass still does: attention sums a token's ancestors in other parts of a tree.)
    """
    if weight.dtype == jnp.bfloat16 and rows.shape[0] == 1:
        return _matmul_on_cpu(jnp.concatenate([rows, rows]), weight)[:1]
    return _matmul(weight, rows).T


class Linear(nn.Module):
    """Affine map over the last axis; the result has the dtype of `x`, or `result`."""

    features: int
    use_bias: bool = False
    dtype: DTypeLike = jnp.float32
    result: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*rows i"]) -> Float[Array, "*rows o"]:
        weight = self.param("weight", nn.initializers.normal(0.02), (self.features, x.shape[-1]), self.dtype)
        out = matmul(x, weight)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,), self.dtype)
            out = out + bias.astype(jnp.float32).reshape((1,) * (out.ndim - 1) + (-1,))
        return out.astype(self.result or x.dtype)


class RMSNorm(nn.Module):
    """`x / rms(x) * scale`, computed in float32."""

    eps: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*rows h"]) -> Float[Array, "*rows h"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return wide.astype(x.dtype) * scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


class Embedding(nn.Module):
    """Token table, also the output matrix where embeddings are tied."""

    vocab_size: int
    hidden_size: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        shape = (self.vocab_size, self.hidden_size)
        self.embedding = self.param("embedding", nn.initializers.normal(0.02), shape, self.dtype)

    def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        return jnp.take(self.embedding, tokens, axis=0).astype(activation_dtype(self.dtype))

    def attend(self, hidden: Float[Array, "b n h"]) -> Float[Array, "b n v"]:
        """Logits by the transposed table, in float32."""
        return matmul(hidden, self.embedding)


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`."""

    hidden_size: int
    intermediate_size: int
    use_bias: bool
    dtype: DTypeLike = jnp.float32

    def setup(self):
        self.gate_proj = Linear(self.intermediate_size, self.use_bias, self.dtype)
        self.up_proj = Linear(self.intermediate_size, self.use_bias, self.dtype)
        self.down_proj = Linear(self.hidden_size, self.use_bias, self.dtype)

    def __call__(self, x: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))
