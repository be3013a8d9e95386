"""The token mixer of most layers: grouped-query attention over a cache of keys and values.

A token mixer is a module that is called with the residual stream, its input, the norms before and after it, the
`AttentionInputs` of its kind of layer, the layer's state of committed tokens and that of earlier draft levels. It gives
the residual stream with its part added, and what the fresh tokens add to the state.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle_jax import ops
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.layers import Linear, norm
from eagle_jax.models.layout import QKV
from eagle_jax.ops import KV, AttentionInputs, CachedKV, LayerRows

Norms = tuple[ops.Norm | None, ops.Norm | None]


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; the config says whether it has norms and gates.

    Values may be made of the keys (`kv="keys"`). With `kv="none"` tokens have no keys of their own: `draft_kv` holds
    the keys and values of another layer, whose prefix is `prefix`.
    """

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32
    rotates: bool = True
    kv: str = "both"

    def setup(self):
        c = self.config
        qkv_bias, heads, queries = c.attention_bias or c.qkv_bias, c.num_key_value_heads, 1 + c.gated
        if self.has_variable("params", QKV):
            group = c.num_attention_heads // heads
            self.qkv_proj = Linear((heads, group * queries + 2, c.head_dim), qkv_bias, self.dtype)
        else:
            self.q_proj = Linear(queries * c.num_attention_heads * c.head_dim, qkv_bias, self.dtype)
            if self.kv != "none":
                self.k_proj = Linear(heads * c.head_dim, qkv_bias, self.dtype)
            if self.kv == "both":
                self.v_proj = Linear(heads * c.head_dim, qkv_bias, self.dtype)
        self.o_proj = Linear(c.hidden_size, c.attention_bias, self.dtype)
        if c.qk_norm and not self._is_unscaled:
            self.q_norm = norm(c, self.dtype)
            if self.kv != "none":
                self.k_norm = norm(c, self.dtype)
        if c.sinks:
            self.sinks = self.param("sinks", nn.initializers.normal(0.02), (c.num_attention_heads,), self.dtype)

    def __call__(
        self,
        residual: Float[Array, "b n h"],
        x: Float[Array, "b n i"],
        norms: Norms,
        inputs: AttentionInputs,
        prefix: CachedKV,
        draft_kv: KV | None,
    ) -> tuple[Float[Array, "b n h"], LayerRows]:
        """Computes `residual + attention(x)`, with norms before and after it, and the tokens' own keys and values."""
        scale, softcap = self.config.attention_scale, self.config.attn_logit_softcapping
        weights = self._weights(x.shape[-1], *norms)
        return ops.attention_block(residual, x, weights, inputs, prefix, draft_kv, scale=scale, softcap=softcap)

    def keys_and_values(self, x: Float[Array, "b n i"], norm: ops.Norm | None, inputs: AttentionInputs) -> KV:
        """Returns the tokens' own keys and values, where nothing else is read."""
        return ops.keys_and_values(x, self._weights(x.shape[-1], norm, None), inputs, self.config.head_dim)

    @property
    def _is_unscaled(self) -> bool:
        return self.config.qk_norm_over == "rotated_head_unscaled"

    def _unscaled(self) -> ops.Norm:
        return ops.Norm(jnp.ones(self.config.head_dim, self.dtype), self.config.rms_norm_eps)

    def _weights(self, size: int, norm: ops.Norm | None, post_norm: ops.Norm | None) -> ops.AttentionWeights:
        c = self.config
        if self.has_variable("params", QKV):
            qkv = self.qkv_proj.weights(size)
        else:
            maps = {"none": ("q_proj",), "keys": ("q_proj", "k_proj"), "both": ("q_proj", "k_proj", "v_proj")}[self.kv]
            qkv = tuple(getattr(self, name).weights(size) for name in maps)
        per_projection = c.qk_norm_over == "projection"
        heads = (c.num_attention_heads, c.num_key_value_heads) if per_projection else (1, 1)
        q_norm, k_norm = None, None
        if c.qk_norm and not self._is_unscaled:
            q_norm = self.q_norm.weights(heads[0] * c.head_dim)
            k_norm = None if self.kv == "none" else self.k_norm.weights(heads[1] * c.head_dim)
        elif c.qk_norm and self.rotates:
            q_norm = k_norm = self._unscaled()
        return ops.AttentionWeights(
            norm=norm,
            qkv=qkv,
            o=self.o_proj.weights(c.num_attention_heads * c.head_dim),
            q_norm=q_norm,
            k_norm=k_norm,
            v_norm=self._unscaled() if c.v_norm else None,
            post_norm=post_norm,
            sinks=self.sinks if c.sinks else None,
            norms_over=c.qk_norm_over.removesuffix("_unscaled"),
            gated=c.gated,
            interleaved=c.rope.interleaved,
            multiplier=c.residual_multiplier,
        )
