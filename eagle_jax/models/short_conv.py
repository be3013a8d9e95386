"""DFlash 2's decoder layer: short convolutions along the block around attention and around the MLP.

    x += attention_conv.finish(attention(attention_conv.prepare(input_layernorm(x))))
    x += mlp_conv.finish(mlp(mlp_conv.prepare(post_attention_layernorm(x))))

A slot's output is a sum over the slots before it, with weights for each channel that are a constant and a part that
depends on the sublayer's input and is shared by the channels of a group:

    y[t, c] = sum_j (base[side, j, c] + dynamic[t, side, j, group of c]) x[t - j, c]      x[t] = 0 for t < 0

`side` is 0 for `prepare` and 1 for `finish`. Nothing of the context passes through them.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle_jax import ops
from eagle_jax.configs.dflash import ConvolutionConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.attention import Attention
from eagle_jax.models.layers import MLP, Linear, RMSNorm
from eagle_jax.ops import KV, AttentionInputs, CachedKV


def _identity(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "2 j h"]:
    """Returns the constant part of a convolution that changes nothing."""
    return jnp.zeros(shape, dtype).at[:, 0].set(1)


class ShortConv(nn.Module):
    """Two convolutions, before and after a sublayer, with kernels made of its input; new ones change nothing."""

    size: int
    config: ConvolutionConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        taps, groups = self.config.kernel_size, self.size // self.config.group_size
        self.base_kernel = self.param("base_kernel", _identity, (2, taps, self.size), self.dtype)
        self.kernel_projection = Linear(2 * taps * groups, dtype=self.dtype, init=nn.initializers.zeros)

    def prepare(self, x: Float[Array, "b a p h"]) -> tuple[Float[Array, "b a p h"], Float[Array, "b a p j h"]]:
        """Returns the input of the sublayer, and the kernel that `finish` needs."""
        dynamic = self.kernel_projection(x).reshape(*x.shape[:3], 2, self.config.kernel_size, -1)
        base = self.base_kernel.astype(x.dtype)
        kernel = jnp.repeat(dynamic, self.config.group_size, axis=-1) + base[None, None, None]
        return _convolved(x, kernel[..., 0, :, :]), kernel[..., 1, :, :]

    def finish(self, y: Float[Array, "b a p h"], kernel: Float[Array, "b a p j h"]) -> Float[Array, "b a p h"]:
        """Returns the term that is added to the residual stream."""
        return _convolved(y, kernel)


def _convolved(x: Float[Array, "b a p h"], kernel: Float[Array, "b a p j h"]) -> Float[Array, "b a p h"]:
    slots = x.shape[2]
    delayed = [jnp.pad(x, ((0, 0), (0, 0), (j, 0), (0, 0)))[:, :, :slots] for j in range(kernel.shape[3])]
    return jnp.sum(kernel * jnp.stack(delayed, axis=3), axis=3)


class ConvolvedLayer(nn.Module):
    """A decoder layer over blocks with a short convolution around each sublayer."""

    config: LlamaConfig
    convolution: ConvolutionConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config
        self.input_layernorm = RMSNorm(c.rms_norm_eps, self.dtype)
        self.attention_conv = ShortConv(c.hidden_size, self.convolution, self.dtype)
        self.self_attn = Attention(c, self.dtype)
        self.post_attention_layernorm = RMSNorm(c.rms_norm_eps, self.dtype)
        self.mlp_conv = ShortConv(c.hidden_size, self.convolution, self.dtype)
        self.mlp = MLP(c.hidden_size, c.intermediate_size, c.mlp_bias, self.dtype)

    def __call__(
        self, x: Float[Array, "b n h"], inputs: AttentionInputs, prefix: CachedKV, draft_kv: KV | None, slots: int
    ) -> tuple[Float[Array, "b n h"], KV]:
        """Returns the layer's output, and the rows' own keys and values; the rows are blocks of `slots` each."""

        def by_block(rows: Float[Array, "b n h"]) -> Float[Array, "b a p h"]:
            return rows.reshape(len(rows), -1, slots, rows.shape[2])

        with jax.named_scope("attention"):
            read, kernel = self.attention_conv.prepare(by_block(self.input_layernorm(x)))
            # the convolution stands between the sublayer and the residual stream, so the sum is taken here
            arguments = jnp.zeros_like(x), read.reshape(x.shape), (None, None), inputs, prefix, draft_kv
            y, kv = self.self_attn(*arguments)
            x = x + self.attention_conv.finish(by_block(y), kernel).reshape(x.shape)
        with jax.named_scope("mlp"):
            read, kernel = self.mlp_conv.prepare(by_block(self.post_attention_layernorm(x)))
            weights = self.mlp.weights(self.post_attention_layernorm.weights(x.shape[2]))
            y = ops.feed_forward(read.reshape(x.shape), weights, inputs.num_valid)
            return x + self.mlp_conv.finish(by_block(y), kernel).reshape(x.shape), kv
