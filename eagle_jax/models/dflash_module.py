"""The layers of a DFlash head; see `dflash` for how they are used."""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.models.cache import Cache
from eagle_jax.models.edges import CandidateSelector, ConfidenceHead, MarkovHead
from eagle_jax.models.layers import Embedding, Linear, RMSNorm
from eagle_jax.models.llama import DecoderLayer
from eagle_jax.models.short_conv import ConvolvedLayer
from eagle_jax.ops import KV, AttentionInputs
from eagle_jax.sharding import constrain


class DFlashModule(nn.Module):
    """`fc` and its norm for the context, the layers, and what reads logits off them."""

    config: DFlashConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c, layers = self.config, self.config.layers
        if c.own_embedding:
            self.embed_tokens = Embedding(layers.vocab_size, layers.hidden_size, self.dtype)
        if c.own_mask_embedding:
            normal = nn.initializers.normal(0.02)
            self.mask_embedding = self.param("mask_embedding", normal, (layers.hidden_size,), self.dtype)
        self.fc = Linear(layers.hidden_size, dtype=self.dtype)
        self.hidden_norm = RMSNorm(layers.rms_norm_eps, self.dtype)
        if c.convolution is None:
            self.layers = [DecoderLayer(layers, self.dtype) for _ in range(layers.num_hidden_layers)]
        else:
            convolved = functools.partial(ConvolvedLayer, layers, c.convolution, self.dtype)
            self.layers = [convolved() for _ in range(layers.num_hidden_layers)]
        self.norm = RMSNorm(layers.rms_norm_eps, self.dtype)
        if c.draft_vocab_size is not None:
            self.lm_head = Linear(c.draft_vocab_size, dtype=self.dtype, result=jnp.float32)
        sizes = layers.vocab_size, layers.vocab_size if c.draft_vocab_size is None else c.draft_vocab_size
        if c.markov is not None:
            self.markov_head = MarkovHead(c.markov, *sizes, self.dtype)
        if c.selector is not None:
            self.candidate_selector = CandidateSelector(c.selector, *sizes, self.dtype)
        if c.confidence is not None:
            self.confidence_head = ConfidenceHead(c.confidence, self.dtype)

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        return self.embed_tokens(tokens)

    def context(self, taps: tuple[Float[Array, "b r t"], ...], inputs: AttentionInputs) -> tuple[KV, ...]:
        """Computes the keys and values of rows of true text, per layer."""
        features = self.hidden_norm(self.fc(constrain(jnp.concatenate(taps, axis=-1))))
        layers: list[Any] = self.layers
        return tuple(layer.self_attn.keys_and_values(features, None, inputs) for layer in layers)

    def __call__(
        self,
        x: Float[Array, "b n h"],
        inputs: tuple[AttentionInputs, ...],
        cache: Cache,
        slots: int,
        context: tuple[KV, ...] = (),
    ) -> Float[Array, "b n h"]:
        """Computes the normed outputs of blocks of `slots` each; `inputs` has an entry for each layer.

        Args:
            context: keys and values of rows of text that are not in the cache, per layer; `inputs` names them first.
        """
        for i, layer in enumerate(self.layers):
            arguments = x, inputs[i], cache.layers[i].operand, context[i] if context else None
            x, _ = layer(*arguments, slots) if isinstance(layer, ConvolvedLayer) else layer(*arguments)
        return self.norm(x)

    def logits(self, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        return self.lm_head(out)

    def edge_bias(
        self, out: Float[Array, "*slots h"], previous: Int[Array, "*rows"], state: Float[Array, "*rows s"]
    ) -> tuple[Float[Array, "*rows d"], Float[Array, "*rows s"]]:
        return self.markov_head(out, previous, state)

    def pair_scores(
        self, out: Float[Array, "*slots h"], previous: Int[Array, "*rows"], candidates: Int[Array, "*slots k"]
    ) -> Float[Array, "*rows k"]:
        return self.candidate_selector(out, previous, candidates)

    def confidence(self, out: Float[Array, "*slots h"], previous: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
        reads_markov = self.config.confidence is not None and self.config.confidence.with_markov
        return self.confidence_head(out, self.markov_head.embed(previous) if reads_markov else None)

    def initialise(self, taps: tuple[Float[Array, "b n t"], ...], inputs: AttentionInputs, cache: Cache) -> None:
        """Touches every parameter once."""
        c, tokens = self.config, jnp.zeros(taps[0].shape[:2], jnp.int32)
        if c.own_embedding:
            self.embed(tokens)
        self.context(taps, inputs)
        row = jnp.zeros((*tokens.shape, c.layers.hidden_size), self.dtype)
        out = self(row, (inputs,) * c.layers.num_hidden_layers, cache, tokens.shape[1])
        if c.draft_vocab_size is not None:
            self.logits(out)
        if c.markov is not None:
            self.edge_bias(out, tokens, jnp.zeros((*tokens.shape, c.markov.rank), self.dtype))
        if c.selector is not None:
            self.pair_scores(out, tokens, tokens[..., None])
        if c.confidence is not None:
            self.confidence(out, tokens)
