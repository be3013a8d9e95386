"""The decoder layer of the Llama family and the target model built from it.

x = x + o(attention(rope(qkv(norm(x)))))      `ops.attention_block`
x = x + down(silu(gate(norm(x))) * up(norm(x)))    `ops.mlp_block`
"""

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax import ops
from eagle_jax.config import LlamaConfig, Rope
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.cache import Cache
from eagle_jax.models.layers import MLP, Embedding, Linear, RMSNorm
from eagle_jax.models.layout import QKV
from eagle_jax.models.moe import SparseMLP
from eagle_jax.ops import KV, AttentionInputs, CachedKV, FlatRows
from eagle_jax.sharding import constrain


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; `qk_norm` norms each head before it is rotated."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config
        qkv_bias, heads = c.attention_bias or c.qkv_bias, c.num_key_value_heads
        if self.has_variable("params", QKV):
            group = c.num_attention_heads // heads
            self.qkv_proj = Linear((heads, group + 2, c.head_dim), qkv_bias, self.dtype)
        else:
            self.q_proj = Linear(c.num_attention_heads * c.head_dim, qkv_bias, self.dtype)
            self.k_proj = Linear(heads * c.head_dim, qkv_bias, self.dtype)
            self.v_proj = Linear(heads * c.head_dim, qkv_bias, self.dtype)
        self.o_proj = Linear(c.hidden_size, c.attention_bias, self.dtype)
        if c.qk_norm:
            self.q_norm, self.k_norm = norm(c, self.dtype), norm(c, self.dtype)

    def __call__(
        self,
        residual: Float[Array, "b n h"],
        x: Float[Array, "b n i"],
        norms: tuple[ops.Norm | None, ops.Norm | None],
        inputs: AttentionInputs,
        prefix: CachedKV,
        draft_kv: KV | None,
    ) -> tuple[Float[Array, "b n h"], KV]:
        """`residual + attention(x)`, with norms before and behind it, and the tokens' own keys and values."""
        gemma = self.config.gemma
        scale = (self.config.head_dim if gemma is None else gemma.query_pre_attn_scalar) ** -0.5
        softcap = None if gemma is None else gemma.attn_logit_softcapping
        weights = self._weights(x.shape[-1], *norms)
        return ops.attention_block(residual, x, weights, inputs, prefix, draft_kv, scale=scale, softcap=softcap)

    def keys_and_values(self, x: Float[Array, "b n i"], norm: ops.Norm | None, inputs: AttentionInputs) -> KV:
        """The tokens' own, where nothing else is read."""
        return ops.keys_and_values(x, self._weights(x.shape[-1], norm, None), inputs, self.config.head_dim)

    def _weights(self, size: int, norm: ops.Norm | None, post_norm: ops.Norm | None) -> ops.AttentionWeights:
        c = self.config
        if self.has_variable("params", QKV):
            qkv = self.qkv_proj.weights(size)
        else:
            qkv = self.q_proj.weights(size), self.k_proj.weights(size), self.v_proj.weights(size)
        o = self.o_proj.weights(c.num_attention_heads * c.head_dim)
        q_norm, k_norm = (self.q_norm, self.k_norm) if c.qk_norm else (None, None)
        return ops.AttentionWeights(norm, qkv, o, _weights(q_norm, c.head_dim), _weights(k_norm, c.head_dim), post_norm)


class DecoderLayer(nn.Module):
    """Pre-norm residual block. EAGLE heads leave the first layer's input norm out (`input_norm=False`).

    A `sparse` layer has the config's experts in place of the MLP. Gemma has norms behind attention and MLP too:
    `post_attention_layernorm`, in Llama the one before the MLP, is then what its name says.
    """

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32
    input_norm: bool = True
    sparse: bool = False

    def setup(self):
        c = self.config
        if self.input_norm:
            self.input_layernorm = norm(c, self.dtype)
        self.self_attn = Attention(c, self.dtype)
        self.post_attention_layernorm = norm(c, self.dtype)
        if c.gemma is not None:
            self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(c, self.dtype), norm(c, self.dtype)
        if self.sparse and c.experts is not None:
            self.mlp = SparseMLP(c.hidden_size, c.experts, self.dtype)
        else:
            self.mlp = MLP(c.hidden_size, c.intermediate_size, c.mlp_bias, self.dtype, gelu=c.gemma is not None)

    def __call__(
        self, x: Float[Array, "b n h"], inputs: AttentionInputs, prefix: CachedKV, draft_kv: KV | None
    ) -> tuple[Float[Array, "b n h"], KV]:
        size, before_mlp, after_attention, after_mlp = x.shape[-1], self.post_attention_layernorm, None, None
        if self.config.gemma is not None:
            before_mlp = self.pre_feedforward_layernorm
            after_attention = self.post_attention_layernorm.weights(size)
            after_mlp = self.post_feedforward_layernorm.weights(size)
        with jax.named_scope("attention"):
            x, kv = self.self_attn(x, x, (self._input_norm(size), after_attention), inputs, prefix, draft_kv)
        with jax.named_scope("mlp"):
            if isinstance(self.mlp, SparseMLP):
                return x + self.mlp(before_mlp(x)), kv
            return ops.mlp_block(x, self.mlp.weights(before_mlp.weights(size), after_mlp), inputs.num_valid), kv

    def keys_and_values(self, x: Float[Array, "b n h"], inputs: AttentionInputs) -> KV:
        """Those of its attention, and nothing else of the layer."""
        return self.self_attn.keys_and_values(x, self._input_norm(x.shape[-1]), inputs)

    def _input_norm(self, size: int) -> ops.Norm | None:
        return self.input_layernorm.weights(size) if self.input_norm else None


def through(
    layers: Sequence[DecoderLayer],
    x: Float[Array, "b n h"],
    inputs: AttentionInputs,
    cache: Cache,
    draft_kv: tuple[KV, ...] = (),
    first: int = 0,
) -> tuple[Float[Array, "b n h"], tuple[KV, ...]]:
    """What leaves the last of some layers, and the tokens' own keys and values in each; `first` is their number."""
    kv = []
    for i, layer in enumerate(layers, start=first):
        x, own = traced_once(layer, x, inputs, (cache.k[i], cache.v[i]), draft_kv[i] if draft_kv else None)
        kv.append(own)
    return x, tuple(kv)


def traced_once(layer: DecoderLayer, *args: Any) -> tuple[Float[Array, "b n h"], KV]:
    """`layer(*args)`, traced once for all layers of its kind: a program has one function for them, which XLA inlines.

    Tracing and lowering each of SmolLM2's thirty layers took a third of the time in which a kept program is ready.
    """
    if layer.is_initializing():
        return layer(*args)
    kind = layer.clone(parent=None, name=None)
    return _layer(kind, ops.tracing_context(), layer.variables["params"], *args)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _layer(kind: DecoderLayer, context: Hashable, params: Mapping[str, Any], *args: Any) -> Any:
    """A layer as a function of its parameters. `context` is a part of the key alone: what else its operations read."""
    return kind.apply({"params": params}, *args)


def norm(config: LlamaConfig, dtype: DTypeLike) -> RMSNorm:
    """A norm as this family has them."""
    return RMSNorm(config.rms_norm_eps, dtype, plus_one=config.gemma is not None)


def _weights(norm: RMSNorm | None, size: int) -> ops.Norm | None:
    return None if norm is None else norm.weights(size)


class Llama(nn.Module):
    """The target: embedding, decoder layers, final norm, output matrix.

    Layers are unrolled: a scan would copy each one's weights.
    """

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, self.dtype)
        self.layers = [DecoderLayer(c, self.dtype, sparse=c.is_sparse(i)) for i in range(c.num_hidden_layers)]
        self.norm = norm(c, self.dtype)
        if not c.tie_word_embeddings:
            self.lm_head = Linear(c.vocab_size, dtype=self.dtype, result=jnp.float32)

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        embeddings = constrain(self.embed_tokens(tokens))
        if self.config.gemma is None:
            return embeddings
        # transformers rounds the factor to the dtype of the weights, and so do the trained models
        return embeddings * jnp.asarray(self.config.hidden_size**0.5, self.dtype).astype(embeddings.dtype)

    def logits(self, hidden: Float[Array, "b n h"], num_valid: Int[Array, ""] | None = None) -> Float[Array, "b n v"]:
        output = self.embed_tokens.attend if self.config.tie_word_embeddings else self.lm_head
        logits = output(hidden, num_valid)
        cap = None if self.config.gemma is None else self.config.gemma.final_logit_softcapping
        return logits if cap is None else jnp.tanh(logits / cap) * cap

    def __call__(
        self,
        tokens: Int[Array, "b n"],
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n m"],
        cache: Cache,
        taps: tuple[int, ...],
        draft_kv: tuple[KV, ...] = (),
        draft_positions: Int[Array, "b p"] | None = None,
        flat: FlatRows | None = None,
    ) -> tuple[Float[Array, "b n h"], tuple[Float[Array, "b n h"], ...], tuple[KV, ...]]:
        """Final hidden states, the residual stream entering each layer in `taps`, and the tokens' own K/V per layer.

        The tap `num_hidden_layers` is what leaves the last layer, before the final norm.
        """
        fresh = positions if draft_positions is None else jnp.concatenate([draft_positions, positions], axis=1)
        by_kind: dict[tuple[int | None, Rope], AttentionInputs] = {}
        x = self.embed(tokens)
        entering, kv = [], []
        for i, (layer, k, v) in enumerate(zip(self.layers, cache.k, cache.v, strict=True)):
            kind = self.config.window(i), self.config.rope_of(i)
            if kind not in by_kind:
                by_kind[kind] = attention_inputs(self.config, positions, visible, cache, fresh, i, flat)
            entering.append(x)
            x, own = traced_once(layer, x, by_kind[kind], (k, v), draft_kv[i] if draft_kv else None)
            kv.append(own)
        entering.append(x)
        return constrain(self.norm(x)), tuple(entering[i] for i in taps), tuple(kv)

    def initialise(self, tokens: Int[Array, "b n"], cache: Cache) -> Float[Array, "b n v"]:
        """Touches every parameter once."""
        visible = jnp.ones((*tokens.shape, tokens.shape[1]), bool)
        return self.logits(self(tokens, jnp.zeros_like(tokens), visible, cache, ())[0])
