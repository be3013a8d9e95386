"""The pieces every decoder is made of. Parameters keep HuggingFace's names; kernels are `[in, out]`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


def precision(dtype: DTypeLike) -> jax.lax.Precision:
    """float32 means float32: by default TPUs and GPUs multiply it in bfloat16 or TF32, which no comparison survives."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def matmul(x: Float[Array, "*rows i"], kernel: Float[Array, "i o"]) -> Float[Array, "*rows o"]:
    """`x @ kernel` in the kernel's dtype, accumulated in float32.

    `preferred_element_type` keeps bfloat16 products on the fast CPU path; an implicit up-cast is ten times slower.
    """
    return jax.lax.dot_general(
        x.astype(kernel.dtype),
        kernel,
        (((x.ndim - 1,), (0,)), ((), ())),
        precision=precision(kernel.dtype),
        preferred_element_type=jnp.float32,
    )


class Linear(nn.Module):
    """Affine map over the last axis."""

    features: int
    use_bias: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*rows i"]) -> Float[Array, "*rows o"]:
        kernel = self.param("kernel", nn.initializers.normal(0.02), (x.shape[-1], self.features), self.dtype)
        out = matmul(x, kernel)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,), self.dtype)
            out = out + bias.astype(jnp.float32).reshape((1,) * (out.ndim - 1) + (-1,))
        return out.astype(kernel.dtype)


class RMSNorm(nn.Module):
    """`x / rms(x) * scale`, computed in float32."""

    eps: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*rows h"]) -> Float[Array, "*rows h"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return wide.astype(x.dtype) * scale.reshape((1,) * (x.ndim - 1) + (-1,))


class Embedding(nn.Module):
    """Token table, also the output matrix where embeddings are tied."""

    vocab_size: int
    hidden_size: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        shape = (self.vocab_size, self.hidden_size)
        self.embedding = self.param("embedding", nn.initializers.normal(0.02), shape, self.dtype)

    def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        return jnp.take(self.embedding, tokens, axis=0)

    def attend(self, hidden: Float[Array, "b n h"]) -> Float[Array, "b n v"]:
        """Logits by the transposed table, in float32."""
        return matmul(hidden, self.embedding.T)


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
