"""The decoder layer of the Llama family and the target model built from it."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.config import LlamaConfig, Rope
from eagle_jax.kernels import tree_attention
from eagle_jax.kernels.native.given import Seen
from eagle_jax.models import halves
from eagle_jax.models.attention import first_slot, window_mask
from eagle_jax.models.cache import KV, Cache
from eagle_jax.models.layers import MLP, Embedding, Linear, RMSNorm, held
from eagle_jax.models.layout import QKV
from eagle_jax.models.moe import SparseMLP
from eagle_jax.models.rope import Angles, angles, rotate
from eagle_jax.sharding import constrain
from eagle_jax.struct import pytree


@pytree
class Sight:
    """What the fresh tokens of one pass see, and where they stand; the same for layers of one window and rotary base.

    Attributes:
        turns: rotary cosines and sines of the fresh tokens.
        fresh: which fresh rows (those beside first, then this pass's own) each token sees, itself included.
        length: committed slots of each row, which its tokens see.
        first: the first of them that each token sees, in a sliding window; None is the first there is.
        wanted: rows, over all requests, behind which nobody reads what is computed: the tokens stand nowhere.
    """

    turns: Angles
    fresh: Bool[Array, "b n m"]
    length: Int[Array, "b"]
    first: Int[Array, "b n"] | None
    wanted: Int[Array, ""]

    @staticmethod
    def of(
        config: LlamaConfig,
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n m"],
        cache: Cache,
        fresh_positions: Int[Array, "b m"],
        layer: int = 0,
    ) -> "Sight":
        """The sight of one layer's tokens; a negative position is none."""
        window, (batch, nodes) = config.window(layer), positions.shape
        places = jnp.arange(1, nodes + 1, dtype=jnp.int32)
        single = batch == 1 and nodes > 1  # of several requests the rows that are wanted do not follow each other
        return Sight(
            turns=angles(config.rope_of(layer), config.head_dim, positions, cache.rope_length),
            fresh=window_mask(visible, positions, fresh_positions, window),
            length=cache.length,
            first=first_slot(positions, window),
            wanted=jnp.max(jnp.where(positions[0] < 0, 0, places)) if single else jnp.int32(batch * nodes),
        )

    def seen(self, prefix: KV, beside: KV | None) -> Seen | None:
        """The same for machine code of ours, of one layer; None in a sliding window, which it is not made for.

        Args:
            beside: keys and values of earlier fresh tokens.
        """
        if self.first is not None:
            return None
        others = (prefix[0][:, :, :0], prefix[1][:, :, :0]) if beside is None else beside
        return Seen(self.turns, others, self.fresh, prefix, self.length, self.wanted)

    def only_wanted(self, x: Float[Array, "b n i"]) -> Float[Array, "b n i"]:
        """Rows, with zeros for those behind the wanted ones: machine code of ours for float weights leaves them out."""
        batch, nodes, _ = x.shape
        rows = jnp.arange(batch * nodes, dtype=jnp.int32).reshape(batch, nodes, 1)
        return jnp.where(rows < self.wanted, x, 0)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; `qk_norm` norms each head before it is rotated."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config
        qkv_bias = c.attention_bias or c.qkv_bias
        if self.has_variable("params", QKV):
            group = c.num_attention_heads // c.num_key_value_heads
            self.qkv_proj = Linear((c.num_key_value_heads, group + 2, c.head_dim), qkv_bias, self.dtype)
        else:
            self.q_proj = Linear(c.num_attention_heads * c.head_dim, qkv_bias, self.dtype)
            self.k_proj = Linear(c.num_key_value_heads * c.head_dim, qkv_bias, self.dtype)
            self.v_proj = Linear(c.num_key_value_heads * c.head_dim, qkv_bias, self.dtype)
        self.o_proj = Linear(c.hidden_size, c.attention_bias, self.dtype)
        if c.qk_norm:
            self.q_norm, self.k_norm = norm(c, self.dtype), norm(c, self.dtype)

    def __call__(
        self, x: Float[Array, "b n i"], sight: Sight, prefix: KV, beside: KV | None
    ) -> tuple[Float[Array, "b n h"], KV]:
        batch, n, _ = x.shape
        q, k, v = self._projected(x)
        q = rotate(q, sight.turns)
        own = rotate(k, sight.turns), v
        fresh = own
        if beside is not None:
            fresh = jnp.concatenate([beside[0], own[0]], axis=2), jnp.concatenate([beside[1], own[1]], axis=2)
        gemma = self.config.gemma
        scale = (self.config.head_dim if gemma is None else gemma.query_pre_attn_scalar) ** -0.5
        softcap = None if gemma is None else gemma.attn_logit_softcapping
        seen = (sight.fresh, prefix, sight.length, sight.first)
        mixed = tree_attention(q, fresh, *seen, scale=scale, softcap=softcap)
        return self.o_proj(mixed.swapaxes(1, 2).reshape(batch, n, -1)), own

    def added(
        self,
        residual: Float[Array, "b n h"],
        x: Float[Array, "b n i"],
        norm: RMSNorm | None,
        sight: Sight,
        prefix: KV,
        beside: KV | None,
    ) -> tuple[Float[Array, "b n h"], KV]:
        """`residual + attention(norm(x))`, and the tokens' own keys and values; without a norm, of `x` as it is."""
        seen = sight.seen(prefix, beside)
        if self.config.gemma is None and seen is not None:
            normed = None if norm is None else held(norm)
            made = halves.mixing(residual, x, normed, self.config.rms_norm_eps, held(self), seen)
            if made is not None:
                return made
        mixed, kv = self(x if norm is None else norm(x), sight, prefix, beside)
        return residual + mixed, kv

    def keys_and_values(self, x: Float[Array, "b n i"], sight: Sight) -> KV:
        """The tokens' own, where nothing else is wanted."""
        _, k, v = self._projected(sight.only_wanted(x))
        return rotate(k, sight.turns), v

    def _projected(
        self, x: Float[Array, "b n i"]
    ) -> tuple[Float[Array, "b h n c"], Float[Array, "b k n c"], Float[Array, "b k n c"]]:
        """Queries, keys and values by head, not yet rotated."""
        q, k, v = self._project(x)
        return (self.q_norm(q), self.k_norm(k), v) if self.config.qk_norm else (q, k, v)

    def _project(
        self, x: Float[Array, "b n i"]
    ) -> tuple[Float[Array, "b h n c"], Float[Array, "b k n c"], Float[Array, "b k n c"]]:
        """What the matrices give, by head."""
        batch, n, _ = x.shape

        def by_head(rows: Float[Array, "b n *o"]) -> Float[Array, "b heads n c"]:
            return rows.reshape(batch, n, -1, self.config.head_dim).swapaxes(1, 2)

        if self.has_variable("params", QKV):
            merged = self.qkv_proj(x)
            return by_head(merged[..., :-2, :]), by_head(merged[..., -2, :]), by_head(merged[..., -1, :])
        return by_head(self.q_proj(x)), by_head(self.k_proj(x)), by_head(self.v_proj(x))


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
        self, x: Float[Array, "b n h"], sight: Sight, prefix: KV, beside: KV | None
    ) -> tuple[Float[Array, "b n h"], KV]:
        norm = self._entry_norm
        if self.config.gemma is None:
            with jax.named_scope("attention"):
                x, kv = self.self_attn.added(x, x, norm, sight, prefix, beside)
            with jax.named_scope("mlp"):
                if isinstance(self.mlp, MLP):
                    return self.mlp.added(x, self.post_attention_layernorm, sight.wanted), kv
                return x + self.mlp(self.post_attention_layernorm(x)), kv
        with jax.named_scope("attention"):
            mixed, kv = self.self_attn(x if norm is None else norm(x), sight, prefix, beside)
        x = x + self.post_attention_layernorm(mixed)
        with jax.named_scope("mlp"):
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))), kv

    def keys_and_values(self, x: Float[Array, "b n h"], sight: Sight) -> KV:
        """Those of its attention, and nothing else of the layer."""
        norm = self._entry_norm
        return self.self_attn.keys_and_values(x if norm is None else norm(x), sight)

    @property
    def _entry_norm(self) -> RMSNorm | None:
        return self.input_layernorm if self.input_norm else None


def through(
    layers: Sequence[DecoderLayer],
    x: Float[Array, "b n h"],
    sight: Sight,
    cache: Cache,
    beside: tuple[KV, ...] = (),
    first: int = 0,
) -> tuple[Float[Array, "b n h"], tuple[KV, ...]]:
    """What leaves the last of some layers, and the tokens' own keys and values in each; `first` is their number."""
    kv = []
    for i, layer in enumerate(layers, start=first):
        x, own = layer(x, sight, (cache.k[i], cache.v[i]), beside[i] if beside else None)
        kv.append(own)
    return x, tuple(kv)


def norm(config: LlamaConfig, dtype: DTypeLike) -> RMSNorm:
    """A norm as this family has them."""
    return RMSNorm(config.rms_norm_eps, dtype, plus_one=config.gemma is not None)


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

    def logits(self, hidden: Float[Array, "b n h"]) -> Float[Array, "b n v"]:
        tied = self.config.tie_word_embeddings
        logits = self.embed_tokens.attend(hidden) if tied else self.lm_head(hidden)
        cap = None if self.config.gemma is None else self.config.gemma.final_logit_softcapping
        return logits if cap is None else jnp.tanh(logits / cap) * cap

    def __call__(
        self,
        tokens: Int[Array, "b n"],
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n m"],
        cache: Cache,
        taps: tuple[int, ...],
        beside: tuple[KV, ...] = (),
        beside_positions: Int[Array, "b p"] | None = None,
    ) -> tuple[Float[Array, "b n h"], tuple[Float[Array, "b n h"], ...], tuple[KV, ...]]:
        """Final hidden states, the residual stream entering each layer in `taps`, and the pass's own K/V per layer.

        The tap `num_hidden_layers` is what leaves the last layer, before the final norm.
        """
        fresh = positions if beside_positions is None else jnp.concatenate([beside_positions, positions], axis=1)
        sights: dict[tuple[int | None, Rope], Sight] = {}
        x = self.embed(tokens)
        entering, kv = [], []
        for i, (layer, k, v) in enumerate(zip(self.layers, cache.k, cache.v, strict=True)):
            kind = self.config.window(i), self.config.rope_of(i)
            if kind not in sights:
                sights[kind] = Sight.of(self.config, positions, visible, cache, fresh, i)
            entering.append(x)
            x, own = layer(x, sights[kind], (k, v), beside[i] if beside else None)
            kv.append(own)
        entering.append(x)
        return constrain(self.norm(x)), tuple(entering[i] for i in taps), tuple(kv)

    def initialise(self, tokens: Int[Array, "b n"], cache: Cache) -> Float[Array, "b n v"]:
        """Touches every parameter once."""
        visible = jnp.ones((*tokens.shape, tokens.shape[1]), bool)
        return self.logits(self(tokens, jnp.zeros_like(tokens), visible, cache, ())[0])
