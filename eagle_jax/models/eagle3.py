"""The EAGLE-3 draft head (Li et al. 2025, section 3.1).

It reads three depths of the target and has its own output matrix:

    taps: low, mid, high --fc--> feature        embedding of the next token
                                    |                |
                               hidden_norm     input_layernorm
                                    +---- concat ----+
                                            | attention, 2 h wide
    feature ------------------------------- +  -> + mlp -> out: the next slot's feature
                                                            | norm, lm_head
                                                          logits over the draft vocabulary
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.configs.heads import Eagle3Config
from eagle_jax.models.cache import Cache
from eagle_jax.models.draft_head import DraftHead, first_ids, one_slot
from eagle_jax.models.layers import MLP, Embedding, Linear, RMSNorm
from eagle_jax.models.llama import DecoderLayer
from eagle_jax.models.lm import causal
from eagle_jax.models.random_params import random_params
from eagle_jax.models.target import Target
from eagle_jax.models.token_mixer import attention_mixer
from eagle_jax.models.traced_once import through
from eagle_jax.ops import AttentionInputs, CachedKV, LayerRows
from eagle_jax.sharding import constrain
from eagle_jax.struct import pytree, static


class FirstLayer(nn.Module):
    """Decoder layer whose attention reads `[embedding ; feature]`, each normed, and whose residual is the feature."""

    config: Eagle3Config
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config.layers
        self.hidden_norm = RMSNorm(c.rms_norm_eps, self.dtype)
        self.input_layernorm = RMSNorm(c.rms_norm_eps, self.dtype)
        self.self_attn = attention_mixer(c, self.dtype)
        self.post_attention_layernorm = RMSNorm(c.rms_norm_eps, self.dtype)
        self.mlp = MLP(c.hidden_size, c.intermediate_size, c.mlp_bias, self.dtype)

    def __call__(
        self,
        embeddings: Float[Array, "b n h"],
        features: Float[Array, "b n h"],
        inputs: AttentionInputs,
        prefix: CachedKV,
        draft_kv: LayerRows | None,
    ) -> tuple[Float[Array, "b n h"], LayerRows]:
        normed = self.hidden_norm(features)
        residual = normed if self.config.norm_before_residual else features
        both = self._both(embeddings, normed)
        x, kv = self.self_attn(residual, both, (None, None), inputs, prefix, draft_kv)
        norm = self.post_attention_layernorm.weights(x.shape[-1])
        return ops.mlp_block(x, self.mlp.weights(norm), inputs.num_valid), kv

    def keys_and_values(
        self, embeddings: Float[Array, "b n h"], features: Float[Array, "b n h"], inputs: AttentionInputs
    ) -> LayerRows:
        """Computes the keys and values of its attention, without the rest of the layer."""
        return self.self_attn.keys_and_values(self._both(embeddings, self.hidden_norm(features)), None, inputs)

    def _both(self, embeddings: Float[Array, "b n h"], normed: Float[Array, "b n h"]) -> Float[Array, "b n i"]:
        return constrain(jnp.concatenate([self.input_layernorm(embeddings), normed], axis=-1))


class Eagle3Head(nn.Module):
    """`fc` for true text, the layers, and what reads logits off them."""

    config: Eagle3Config
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c, eps = self.config, self.config.layers.rms_norm_eps
        if c.own_embedding:
            self.embed_tokens = Embedding(c.layers.vocab_size, c.layers.hidden_size, self.dtype)
        if c.fc_norm:
            self.fc_norm = [RMSNorm(eps, self.dtype) for _ in c.taps]
        if c.norm_before_fc:
            self.input_norm = RMSNorm(eps, self.dtype)
        self.fc = Linear(c.layers.hidden_size, dtype=self.dtype)
        if c.mask is not None:
            width = len(c.taps) * c.target_hidden_size
            self.mask_hidden = self.param("mask_hidden", nn.initializers.normal(1.0), (width,), self.dtype)
        rest = [DecoderLayer(c.layers, self.dtype) for _ in range(1, c.layers.num_hidden_layers)]
        self.layers: list[Any] = [FirstLayer(c, self.dtype), *rest]
        self.norm = RMSNorm(eps, self.dtype)
        self.lm_head = Linear(c.draft_vocab_size, dtype=self.dtype, result=jnp.float32)

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        return self.embed_tokens(tokens)

    def fuse(self, taps: tuple[Float[Array, "b n t"], ...]) -> Float[Array, "b n h"]:
        if self.config.fc_norm:
            taps = tuple(norm(tap) for norm, tap in zip(self.fc_norm, taps, strict=True))
        side_by_side = constrain(jnp.concatenate(taps, axis=-1))
        return self.fc(self.input_norm(side_by_side) if self.config.norm_before_fc else side_by_side)

    def mask_feature(self, dtype: DTypeLike) -> Float[Array, "1 1 h"]:
        """Returns the vector that mask rows read in place of a feature."""
        return self.fuse(tuple(jnp.split(self.mask_hidden.astype(dtype)[None, None], len(self.config.taps), axis=-1)))

    def __call__(
        self,
        embeddings: Float[Array, "b n h"],
        features: Float[Array, "b n h"],
        inputs: AttentionInputs,
        cache: Cache,
        draft_kv: tuple[LayerRows, ...],
    ) -> tuple[Float[Array, "b n h"], tuple[LayerRows, ...]]:
        prefix = cache.layers[0].operand
        x, first_kv = self.layers[0](embeddings, features, inputs, prefix, draft_kv[0] if draft_kv else None)
        x, kv = through(self.layers[1:], x, inputs, cache, draft_kv, first=1)
        return self.norm(x) if self.config.norm_output else x, (first_kv, *kv)

    def keys_and_values(
        self, embeddings: Float[Array, "b n h"], features: Float[Array, "b n h"], inputs: AttentionInputs, cache: Cache
    ) -> tuple[LayerRows, ...]:
        first, *rest = self.layers
        if not rest:
            return (first.keys_and_values(embeddings, features, inputs),)
        x, first_kv = first(embeddings, features, inputs, cache.layers[0].operand, None)
        x, kv = through(rest[:-1], x, inputs, cache, first=1)
        return first_kv, *kv, rest[-1].keys_and_values(x, inputs)

    def normed(self, out: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        return out if self.config.norm_output else self.norm(out)

    def logits(self, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        return self.lm_head(self.normed(out))

    def initialise(self, taps: tuple[Float[Array, "b n t"], ...], inputs: AttentionInputs, cache: Cache) -> None:
        """Touches every parameter once."""
        if self.config.own_embedding:
            self.embed(jnp.zeros(taps[0].shape[:2], jnp.int32))
        features = self.fuse(taps)
        if self.config.mask is not None:
            self.mask_feature(features.dtype)
        self.logits(self(features, features, inputs, cache, ())[0])


@pytree
class Head3(DraftHead):
    """An EAGLE-3 or P-EAGLE head with its weights. The embedding is the target's, unless it brings its own."""

    config: Eagle3Config = static()

    @staticmethod
    def init(config: Eagle3Config, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "Head3":
        """Initialises random weights (normal, 0.02); a draft vocabulary has the lowest ids."""
        taps = (jnp.zeros((1, 1, config.target_hidden_size), dtype),) * len(config.taps)
        at = one_slot(config.layers, dtype)
        params = random_params(Eagle3Head(config, dtype), key, taps, *at)
        return Head3(params=params, config=config, vocabulary=first_ids(config))

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    def embed(self, target: Target, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        if not self.config.own_embedding:
            return target.embed(tokens)
        return self._apply(tokens, method=Eagle3Head.embed).astype(target.activations)

    def features(self, hidden: Float[Array, "b n t"], taps: tuple[Float[Array, "b n t"], ...]) -> Float[Array, "b n h"]:
        return self._apply(taps, method=Eagle3Head.fuse)

    def logits(self, target: Target, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        return self._apply(out, method=Eagle3Head.logits)

    def mask_rows(self, target: Target, batch: int, rows: int) -> tuple[Float[Array, "b n h"], Float[Array, "b n h"]]:
        """Returns embeddings and features of mask rows, n in each row of a batch."""
        assert self.config.mask is not None
        embedding = self.embed(target, jnp.full((1, 1), self.config.mask.token_id, jnp.int32))
        feature = self._apply(embedding.dtype, method=Eagle3Head.mask_feature)
        shape = batch, rows, embedding.shape[-1]
        return jnp.broadcast_to(embedding, shape), jnp.broadcast_to(feature, shape).astype(embedding.dtype)

    def draft(
        self, target: Target, out: Float[Array, "b h"], length: Int[Array, "b"], cache: Cache, depth: int
    ) -> Float[Array, "b p d"]:
        """Computes logits in float32, over the draft vocabulary, of the tokens 1 to `depth` (p) places after the root,
        all from one pass over mask rows.

        Args:
            out: the output at the last row of text, which `forward` made together with its keys and values.
            length: the root's position: the rows of text before it are in `cache`.
            depth: at most `config.mask.num_drafted`. A mask row sees those before it alone, so those that are not read
                are not computed.
        """
        outs = out[:, None]
        if depth > 1:
            steps, chain = causal(len(out), depth - 1)
            rows = self.mask_rows(target, *steps.shape)
            masks, _ = self.forward(*rows, length[:, None] + steps, chain, cache)
            outs = jnp.concatenate([outs, masks], axis=1)
        return self.logits(target, outs)

    def guess(self, out: Float[Array, "b n h"]) -> Float[Array, "b n t"] | None:
        if self.config.layers.hidden_size != self.config.target_hidden_size:
            return None
        return self._apply(out, method=Eagle3Head.normed)

    @property
    def module(self) -> Eagle3Head:
        return Eagle3Head(self.config, self.dtype)
