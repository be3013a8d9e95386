"""Base class of EAGLE heads: a few decoder layers that draft one token after another."""

import abc
import dataclasses

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.cache import Cache
from eagle_jax.models.lm import causal, empty_cache
from eagle_jax.models.target import Target
from eagle_jax.ops import AttentionInputs, LayerRows, activation_dtype
from eagle_jax.struct import static


@dataclasses.dataclass(frozen=True)
class DraftHead(AnyHead):
    """An autoregressive head: each draft step reads the output of the previous one.

    Slot i holds a feature of token i and the embedding of token i + 1, stands at position i (the feature's), and its
    output predicts token i + 2. Over true text the feature is made of what the target computed (`features`); while
    drafting it is the head's own output at the slot before.
    """

    config: EagleConfig | Eagle3Config = static()

    def __post_init__(self):
        check_vocabulary(self)

    @abc.abstractmethod
    def embed(self, target: Target, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        """Returns the embeddings of tokens (target ids)."""

    @abc.abstractmethod
    def features(self, hidden: Float[Array, "b n t"], taps: tuple[Float[Array, "b n t"], ...]) -> Float[Array, "b n h"]:
        """Returns the features that slots of true text read, from final hidden states and residual streams `taps`."""

    @abc.abstractmethod
    def logits(self, target: Target, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        """Computes logits over the draft vocabulary, in float32, for outputs of `forward`."""

    @abc.abstractmethod
    def guess(self, out: Float[Array, "b n h"]) -> Float[Array, "b n t"] | None:
        """Returns the guessed final hidden states of the target, for a loss on features; None without a guess."""

    def forward(
        self,
        embeddings: Float[Array, "b n h"],
        features: Float[Array, "b n h"],
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n m"],
        cache: Cache,
        draft_kv: tuple[LayerRows, ...] = (),
        draft_positions: Int[Array, "b p"] | None = None,
    ) -> tuple[Float[Array, "b n h"], tuple[LayerRows, ...]]:
        """Computes the outputs of `n` slots, which the next draft step reads as features, and the slots' own K/V.

        Args:
            visible: which fresh rows each slot sees: the `p` rows draft_kv first, then the `n` own rows (`m = p + n`);
                rows beyond those that it names come in groups of `n`, and slot i sees the i-th row of each group.
            draft_kv: K/V of earlier rows of the same draft tree, per layer; they are not in the cache.
            draft_positions: their positions; None if `visible` names but `n` rows, which stand at `positions`.
        """
        fresh_positions = (
            positions if draft_positions is None else jnp.concatenate([draft_positions, positions], axis=1)
        )
        inputs = attention_inputs(self.config.layers, positions, visible, cache, fresh_positions)
        return self._apply(embeddings, features.astype(embeddings.dtype), inputs, cache, draft_kv)

    def keys_and_values(
        self,
        embeddings: Float[Array, "b n h"],
        features: Float[Array, "b n h"],
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n n"],
        cache: Cache,
    ) -> tuple[LayerRows, ...]:
        """Computes the keys and values that `forward` does, without outputs: the last layer does not attend."""
        inputs = attention_inputs(self.config.layers, positions, visible, cache, positions)
        arguments = embeddings, features.astype(embeddings.dtype), inputs, cache
        return self._apply(*arguments, method="keys_and_values")

    def causal(self, embeddings: Float[Array, "b n h"], features: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        """Computes outputs over whole sequences, causally, without a cache."""
        batch, n, _ = features.shape
        cache = self.empty_cache(batch, 0, embeddings.dtype)
        cache = dataclasses.replace(cache, rope_length=jnp.full(batch, n, jnp.int32))
        return self.forward(embeddings, features, *causal(batch, n), cache)[0]

    def empty_cache(self, batch: int, slots: int, activations: DTypeLike | None = None) -> Cache:
        """Returns a cache for `slots` rows of true text, in the target's activation dtype; None is the head's own."""
        kind = activation_dtype(self.dtype) if activations is None else activations
        return empty_cache(self.config.layers, batch, slots, kind)

    @property
    def dtype(self) -> np.dtype:
        return self.params["layers_0"]["post_attention_layernorm"]["scale"].dtype

    @property
    def draft_vocab_size(self) -> int:
        size = self.config.draft_vocab_size
        return self.config.layers.vocab_size if size is None else size

    @property
    def num_drafted(self) -> int | None:
        """Tokens that a forward pass drafts (P-EAGLE); None for autoregressive heads, which draft one."""
        mask = self.config.mask if isinstance(self.config, Eagle3Config) else None
        return None if mask is None else mask.num_drafted

    @property
    def layers(self) -> LlamaConfig:
        return self.config.layers

    @property
    def head_dim(self) -> int:
        return self.layers.head_dim


def one_slot(layers: LlamaConfig, dtype: DTypeLike) -> tuple[AttentionInputs, Cache]:
    """Returns the attention inputs of a single slot and an empty cache, to initialise parameters with."""
    cache, (positions, visible) = empty_cache(layers, 1, 0, dtype), causal(1, 1)
    return attention_inputs(layers, positions, visible, cache, positions), cache


def check_vocabulary(head: AnyHead) -> None:
    """Raises ValueError for a head that came with more or fewer target ids than its draft vocabulary has tokens."""
    size, vocab_size = head.draft_vocab_size, head.config.layers.vocab_size
    num_ids = vocab_size if head.vocabulary is None else head.vocabulary.shape[0]
    if num_ids != size:
        raise ValueError(
            f"a head with draft_vocab_size={size} came with {num_ids} target ids; give exactly those of "
            "its draft vocabulary, or None where that is the whole one"
        )


def first_ids(config: EagleConfig | Eagle3Config | DFlashConfig) -> Int[Array, "d"] | None:
    """Returns the draft vocabulary of a head without a chosen one: the lowest ids."""
    size = config.draft_vocab_size
    return None if size is None or size == config.layers.vocab_size else jnp.arange(size, dtype=jnp.int32)
