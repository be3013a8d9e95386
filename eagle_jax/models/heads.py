"""Heads side by side: Medusa's (Cai et al. 2024, arXiv:2401.10774) and Hydra's (Ankner et al. 2024, arXiv:2402.05109).

Head k drafts the token at depth k + 1 below the root, all from what the target made of the token before the root:

    Medusa    head k reads   hidden                              blocks -> output matrix
    Hydra     head k reads   [hidden ; root ; t1 ; .. ; tk]      the same, the first block down to the hidden size
    Hydra++   the same, with a decoder layer over the text's hidden states in place of the hidden state

Medusa's heads do not know what the others drafted; Hydra's read the embeddings of the path (t1 .. tk) above their
token.
"""

import abc
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.configs.heads import HydraConfig, MedusaConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.cache import Cache
from eagle_jax.models.draft_head import one_slot
from eagle_jax.models.layers import Linear, norm
from eagle_jax.models.llama import DecoderLayer
from eagle_jax.models.lm import causal, empty_cache
from eagle_jax.models.random_params import random_params
from eagle_jax.ops import KV, AttentionInputs, activation_dtype
from eagle_jax.struct import pytree, static


class ResBlock(nn.Module):
    """`x + silu(linear(x))`; where `x` is wider than what comes out, a second linear map stands for the first `x`."""

    features: int
    narrows: bool
    dtype: DTypeLike = jnp.float32

    def setup(self):
        self.linear = Linear(self.features, True, self.dtype)
        if self.narrows:
            self.res_connection = Linear(self.features, True, self.dtype)

    def __call__(self, x: Float[Array, "b n w"]) -> Float[Array, "b n h"]:
        return (self.res_connection(x) if self.narrows else x) + nn.silu(self.linear(x))


class OneHead(nn.Module):
    """Blocks, then an output matrix; `narrows` says that the first block reads more than one vector."""

    config: MedusaConfig | HydraConfig
    narrows: bool
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config
        self.layers = [ResBlock(c.hidden_size, self.narrows and i == 0, self.dtype) for i in range(c.num_layers)]
        self.lm_head = Linear(c.vocab_size, isinstance(c, HydraConfig), self.dtype, result=jnp.float32)

    def __call__(self, x: Float[Array, "b n w"]) -> Float[Array, "b n v"]:
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


class Prefix(nn.Module):
    """Hydra++'s decoder layer and the norm after it."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        self.layers = [DecoderLayer(self.config, self.dtype)]
        self.norm = norm(self.config, self.dtype)

    def __call__(
        self, hidden: Float[Array, "b n h"], inputs: AttentionInputs, cache: Cache
    ) -> tuple[Float[Array, "b n h"], tuple[KV, ...]]:
        out, kv = self.layers[0](hidden, inputs, cache.layers[0].operand, None)
        return self.norm(out), (kv,)


class HeadsModule(nn.Module):
    """All heads, and Hydra++'s layer before them."""

    config: MedusaConfig | HydraConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config
        hydra = isinstance(c, HydraConfig)
        self.heads = [OneHead(c, hydra, self.dtype) for _ in range(c.num_heads)]
        if isinstance(c, HydraConfig) and c.prefix is not None:
            self.prefix = Prefix(c.prefix, self.dtype)

    def __call__(self, level: int, x: Float[Array, "b n w"]) -> Float[Array, "b n v"]:
        return self.heads[level](x)

    def read(
        self, hidden: Float[Array, "b n h"], inputs: AttentionInputs, cache: Cache
    ) -> tuple[Float[Array, "b n h"], tuple[KV, ...]]:
        return self.prefix(hidden, inputs, cache)

    def initialise(self) -> None:
        """Touches every parameter once."""
        c = self.config
        row = jnp.zeros((1, 1, c.hidden_size), self.dtype)
        if isinstance(c, HydraConfig) and c.prefix is not None:
            self.read(row, *one_slot(c.prefix, self.dtype))
        for level in range(c.num_heads):
            self(level, jnp.tile(row, (1, 1, level + 2)) if isinstance(c, HydraConfig) else row)


@dataclasses.dataclass(frozen=True)
class Heads(AnyHead):
    """Base class of Medusa and Hydra: one drafted token per head, the whole vocabulary, no tapped layers."""

    config: MedusaConfig | HydraConfig = static()

    taps = ()

    @abc.abstractmethod
    def over_text(
        self, hidden: Float[Array, "b n h"], embeddings: Float[Array, "b n h"]
    ) -> tuple[Float[Array, "b _ _"], ...]:
        """Returns the input of each head at every slot of whole sequences.

        Args:
            hidden: the target's final hidden states of tokens 0 .. n - 1.
            embeddings: of tokens 1 .. n, one further.

        Returns:
            for head k `[b, n - k, w]`: its slot i drafts token i + k + 2.
        """

    def logits(self, level: int, x: Float[Array, "b n w"]) -> Float[Array, "b n v"]:
        """Computes logits in float32 for the token at depth `level + 1`, by head `level`, which reads `x`."""
        return self._apply(level, x)

    @property
    def num_drafted(self) -> int:
        """Tokens drafted ahead: the depth of the deepest tree."""
        return self.config.num_heads

    @property
    def dtype(self) -> np.dtype:
        return self.params["heads_0"]["layers_0"]["linear"]["bias"].dtype

    @property
    def draft_vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def module(self) -> HeadsModule:
        return HeadsModule(self.config, self.dtype)


@pytree
class Medusa(Heads):
    """Medusa heads with their weights."""

    config: MedusaConfig = static()

    head_dim = 1

    @staticmethod
    def init(config: MedusaConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "Medusa":
        """Initialises random weights (normal, 0.02)."""
        return Medusa(params=_initial(config, key, dtype), config=config)

    def over_text(
        self, hidden: Float[Array, "b n h"], embeddings: Float[Array, "b n h"]
    ) -> tuple[Float[Array, "b _ _"], ...]:
        return tuple(hidden[:, : hidden.shape[1] - level] for level in range(self.num_drafted))


@pytree
class Hydra(Heads):
    """Hydra heads with their weights, and the layer before them, if there is one. Embeddings are the target's."""

    config: HydraConfig = static()

    @staticmethod
    def init(config: HydraConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "Hydra":
        """Initialises random weights (normal, 0.02)."""
        return Hydra(params=_initial(config, key, dtype), config=config)

    @property
    def head_dim(self) -> int:
        return 1 if self.config.prefix is None else self.config.prefix.head_dim

    def empty_cache(self, batch: int, slots: int, activations: DTypeLike | None = None) -> Cache:
        """Returns a cache for the layer before the heads; without one it counts tokens and holds nothing.

        `activations` is the dtype of the target's; None is the heads' own.
        """
        if self.config.prefix is not None:
            kind = activation_dtype(self.dtype) if activations is None else activations
            return empty_cache(self.config.prefix, batch, slots, kind)
        return Cache.empty(layers=0, batch=batch, heads=1, slots=slots, head_dim=1, dtype=self.dtype)

    def read(
        self, hidden: Float[Array, "b n h"], positions: Int[Array, "b n"], visible: Bool[Array, "b n n"], cache: Cache
    ) -> tuple[Float[Array, "b n h"], tuple[KV, ...]]:
        """Returns the heads' input at each of `n` rows, and the rows' own K/V; without a layer, `hidden`."""
        if self.config.prefix is None:
            return hidden, ()
        inputs = attention_inputs(self.config.prefix, positions, visible, cache, positions)
        return self._apply(hidden, inputs, cache, method=HeadsModule.read)

    def over_text(
        self, hidden: Float[Array, "b n h"], embeddings: Float[Array, "b n h"]
    ) -> tuple[Float[Array, "b _ _"], ...]:
        batch, n, _ = hidden.shape
        cache = self.empty_cache(batch, 0)
        cache = dataclasses.replace(cache, rope_length=jnp.full(batch, n, jnp.int32))
        read, _ = self.read(hidden, *causal(batch, n), cache)
        return tuple(
            jnp.concatenate([read[:, : n - k], *(embeddings[:, i : n - k + i] for i in range(k + 1))], axis=-1)
            for k in range(self.num_drafted)
        )


def _initial(config: MedusaConfig | HydraConfig, key: jax.Array, dtype: DTypeLike) -> dict:
    return random_params(HeadsModule(config, dtype), key)
