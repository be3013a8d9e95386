"""The EAGLE-1/EAGLE-2 draft head (Li et al. 2024, section 4.1): one decoder layer that guesses the next feature."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.configs.heads import EagleConfig
from eagle_jax.models.cache import Cache
from eagle_jax.models.draft_head import DraftHead, first_ids, one_slot
from eagle_jax.models.layers import Linear, norm
from eagle_jax.models.llama import DecoderLayer
from eagle_jax.models.lm import LM
from eagle_jax.models.random_params import random_params
from eagle_jax.models.target import Target
from eagle_jax.models.traced_once import through
from eagle_jax.ops import AttentionInputs, LayerRows
from eagle_jax.ops.quantized import rows_of
from eagle_jax.sharding import constrain
from eagle_jax.struct import pytree, static


class EagleHead(nn.Module):
    """`layers(fc([embedding ; feature]))`: without a norm before the first layer or after the last, unless `normed`."""

    config: EagleConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config.layers
        self.fc = Linear(c.hidden_size, self.config.fc_bias, self.dtype)
        first = 0 if self.config.normed else 1  # with a norm before it
        self.layers = [
            DecoderLayer(c, self.dtype, input_norm=i >= first, sparse=c.is_sparse(i))
            for i in range(c.num_hidden_layers)
        ]
        if self.config.normed:
            self.embedding_norm, self.feature_norm, self.norm = (norm(c, self.dtype) for _ in range(3))
        if self.config.draft_vocab_size is not None:
            self.lm_head = Linear(self.config.draft_vocab_size, dtype=self.dtype, result=jnp.float32)

    def __call__(
        self,
        embeddings: Float[Array, "b n h"],
        features: Float[Array, "b n h"],
        inputs: AttentionInputs,
        cache: Cache,
        draft_kv: tuple[LayerRows, ...],
    ) -> tuple[Float[Array, "b n h"], tuple[LayerRows, ...]]:
        out, kv = through(self.layers, self._enter(embeddings, features, inputs), inputs, cache, draft_kv)
        return self.norm(out) if self.config.normed else out, kv

    def keys_and_values(
        self, embeddings: Float[Array, "b n h"], features: Float[Array, "b n h"], inputs: AttentionInputs, cache: Cache
    ) -> tuple[LayerRows, ...]:
        x = self._enter(embeddings, features, inputs)
        x, kv = through(self.layers[:-1], x, inputs, cache)
        return *kv, self.layers[-1].keys_and_values(x, inputs)

    def _enter(
        self, embeddings: Float[Array, "b n h"], features: Float[Array, "b n h"], inputs: AttentionInputs
    ) -> Float[Array, "b n h"]:
        if self.config.normed:
            embeddings, features = self.embedding_norm(embeddings), self.feature_norm(features)
        return self.fc(constrain(jnp.concatenate([embeddings, features], axis=-1)), inputs.num_valid)

    def logits(self, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        return self.lm_head(out)

    def initialise(self, row: Float[Array, "b n h"], inputs: AttentionInputs, cache: Cache) -> None:
        """Touches every parameter once."""
        out, _ = self(row, row, inputs, cache, ())
        if self.config.draft_vocab_size is not None:
            self.logits(out)


@pytree
class Head(DraftHead):
    """An EAGLE-1/2 head with its weights. The embedding is the target's, and so is the output matrix, unless the head
    drafts only part of the vocabulary: then it has a copy of that part's rows.
    """

    config: EagleConfig = static()

    taps = ()

    @staticmethod
    def init(config: EagleConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "Head":
        """Initialises random weights (normal, 0.02); a draft vocabulary has the lowest ids."""
        row = jnp.zeros((1, 1, config.layers.hidden_size), dtype)
        at = one_slot(config.layers, dtype)
        params = random_params(EagleHead(config, dtype), key, row, *at)
        return Head(params=params, config=config, vocabulary=first_ids(config))

    def trimmed(self, target: LM, ids: Int[np.ndarray, "d"]) -> "Head":
        """Returns the same head, drafting only the tokens `ids`: a smaller product per draft row, and no training.

        Args:
            target: the head's target, whose output matrix gives the rows.
            ids: target ids, ascending (see `training.vocabulary.most_frequent`).

        Raises:
            ValueError: ids that are not ascending, or not the target's.
        """
        ids, size = np.asarray(ids), target.config.vocab_size
        if ids.ndim != 1 or not ids.size or (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= size:
            raise ValueError(f"the ids of a draft vocabulary must ascend within 0 .. {size - 1}; got {ids}")
        rows = rows_of(target.output_matrix, jnp.asarray(ids))
        return Head(
            params=self.params | {"lm_head": {"weight": rows.astype(self.dtype)}},
            config=dataclasses.replace(self.config, draft_vocab_size=len(ids)),
            vocabulary=jnp.asarray(ids, jnp.int32),
        )

    def embed(self, target: Target, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        return target.embed(tokens)

    def features(self, hidden: Float[Array, "b n t"], taps: tuple[Float[Array, "b n t"], ...]) -> Float[Array, "b n h"]:
        return hidden

    def logits(self, target: Target, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        if self.config.draft_vocab_size is None:
            return target.logits(out)
        return self._apply(out, method=EagleHead.logits)

    def guess(self, out: Float[Array, "b n h"]) -> Float[Array, "b n t"]:
        return out

    @property
    def module(self) -> EagleHead:
        return EagleHead(self.config, self.dtype)
