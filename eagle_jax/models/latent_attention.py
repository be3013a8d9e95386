"""Multi-head latent attention (MLA; DeepSeek-V2, section 2.1), computed in the space of the latent vectors.

    c = norm(down(x))    of each token, with r = rope(k), the part of a key that all heads share
    score = q . up_k(c) + rope(q') . r = up_k^T(q) . c + rope(q') . r

So heads attend with `[up_k^T(q), rope(q')]` to `[c, r]`, of which the cache has one for each token, and `up_v` is
applied to what they find: attention with one kv head, whose values are its keys.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle_jax import ops
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.layers import Linear, RMSNorm
from eagle_jax.models.layout import UP
from eagle_jax.ops import AttentionInputs, CachedKV
from eagle_jax.ops.quantized import dense

Latents = tuple[Float[Array, "b 1 _ c"], None]  # as `KVState` has them


class LatentAttention(nn.Module):
    """A token mixer (`models.attention`) whose cache has a latent vector and a rotated key of each token."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c, latent = self.config, self.config.latent
        assert latent is not None
        queries = c.num_attention_heads * (latent.plain_dim + c.head_dim)
        if latent.query_rank is None:
            self.q_proj = Linear(queries, dtype=self.dtype)
        else:
            self.q_a_proj = Linear(latent.query_rank, c.attention_bias, self.dtype)
            self.q_a_layernorm = RMSNorm(latent.eps, self.dtype)
            self.q_b_proj = Linear(queries, dtype=self.dtype)
        self.kv_a_proj_with_mqa = Linear(latent.rank + c.head_dim, c.attention_bias, self.dtype)
        self.kv_a_layernorm = RMSNorm(latent.eps, self.dtype)
        setattr(self, UP, Linear(c.num_attention_heads * (latent.plain_dim + latent.value_dim), dtype=self.dtype))
        self.o_proj = Linear(c.hidden_size, c.attention_bias, self.dtype)

    def __call__(
        self,
        residual: Float[Array, "b n h"],
        x: Float[Array, "b n i"],
        norms: tuple[ops.Norm | None, ops.Norm | None],
        inputs: AttentionInputs,
        prefix: CachedKV,
        draft_kv: Latents | None,
    ) -> tuple[Float[Array, "b n h"], Latents]:
        """Computes `residual + attention(x)`, with norms before and after it, and the tokens' own latents and keys."""
        c, normed = self.config, x if norms[0] is None else ops.rms_norm(x, norms[0])
        up_key, up_value = self._up(x.dtype)
        plain, rotated = self._queries(normed, inputs)
        absorbed = jnp.einsum("bhnp,hpr->bhnr", plain, up_key, precision=ops.precision(x.dtype))
        q, latents_and_keys = jnp.concatenate([absorbed, rotated], axis=-1), self._keys(normed, inputs)
        fresh = latents_and_keys if draft_kv is None else jnp.concatenate([draft_kv[0], latents_and_keys], axis=2)
        mask_args = inputs.visible, prefix, inputs.length, inputs.first, inputs.cache_rows
        if inputs.flat is None:
            attended = ops.tree_attention(q, (fresh, fresh), *mask_args, scale=c.attention_scale)
        else:
            attended = ops.flat_attention(q, (fresh, fresh), *mask_args, inputs.flat, scale=c.attention_scale)
        latents = attended[..., : up_value.shape[-1]]
        values = jnp.einsum("bhnr,hvr->bnhv", latents, up_value, precision=ops.precision(x.dtype))
        y = self.o_proj(values.reshape(*x.shape[:2], -1), inputs.num_valid)
        return ops.add_residual(residual, y, norms[1], c.residual_multiplier), (latents_and_keys, None)

    def keys_and_values(self, x: Float[Array, "b n i"], norm: ops.Norm | None, inputs: AttentionInputs) -> Latents:
        """Returns the tokens' own latent vectors and keys, where nothing else is read."""
        return self._keys(x if norm is None else ops.rms_norm(x, norm), inputs), None

    def _queries(
        self, x: Float[Array, "b n i"], inputs: AttentionInputs
    ) -> tuple[Float[Array, "b h n p"], Float[Array, "b h n c"]]:
        """Returns the part of each query that is not rotated, and the rotated one."""
        c, latent, valid = self.config, self.config.latent, inputs.num_valid
        assert latent is not None
        if latent.query_rank is None:
            q = self.q_proj(x, valid)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x, valid)), valid)
        heads = q.reshape(*x.shape[:2], c.num_attention_heads, -1).swapaxes(1, 2)
        plain, rotated = jnp.split(heads, [latent.plain_dim], axis=-1)
        return plain, ops.rotate(rotated, inputs.cos_sin, c.rope.interleaved)

    def _keys(self, x: Float[Array, "b n i"], inputs: AttentionInputs) -> Float[Array, "b 1 n c"]:
        """Returns the latent vector and the rotated key of each token."""
        assert self.config.latent is not None
        both = self.kv_a_proj_with_mqa(x, inputs.num_valid)[:, None]
        latent, key = jnp.split(both, [self.config.latent.rank], axis=-1)
        rotated = ops.rotate(key, inputs.cos_sin, self.config.rope.interleaved)
        return jnp.concatenate([self.kv_a_layernorm(latent), rotated], axis=-1)

    def _up(self, dtype: DTypeLike) -> tuple[Float[Array, "h p r"], Float[Array, "h v r"]]:
        """Returns the maps from a latent vector to keys and values, by head."""
        c, latent = self.config, self.config.latent
        assert latent is not None
        weight = dense(getattr(self, UP).weights(latent.rank).weight).astype(dtype)
        by_head = weight.reshape(c.num_attention_heads, -1, latent.rank)
        return by_head[:, : latent.plain_dim], by_head[:, latent.plain_dim :]
