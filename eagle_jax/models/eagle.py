"""The EAGLE-1/EAGLE-2 draft head (Li et al. 2024, section 4.1): one decoder layer that guesses the next feature."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.config import EagleConfig
from eagle_jax.models.cache import KV, Cache
from eagle_jax.models.layers import Linear, activation_dtype
from eagle_jax.models.llama import DecoderLayer, Sight
from eagle_jax.models.lm import causal
from eagle_jax.struct import pytree, static

Params = dict[str, Any]


class EagleHead(nn.Module):
    """`layers(fc([embedding ; feature]))`: no norm before the first layer, none after the last."""

    config: EagleConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config.layers
        self.fc = Linear(c.hidden_size, self.config.fc_bias, self.dtype)
        self.layers = [DecoderLayer(c, self.dtype, input_norm=i > 0) for i in range(c.num_hidden_layers)]

    def __call__(
        self,
        embeddings: Float[Array, "b n h"],
        features: Float[Array, "b n h"],
        sight: Sight,
        cache: Cache,
        beside: tuple[KV, ...],
    ) -> tuple[Float[Array, "b n h"], tuple[KV, ...]]:
        x = self.fc(jnp.concatenate([embeddings, features.astype(embeddings.dtype)], axis=-1))
        kv = []
        for i, (layer, k, v) in enumerate(zip(self.layers, cache.k, cache.v, strict=True)):
            x, own = layer(x, sight, (k, v), beside[i] if beside else None)
            kv.append(own)
        return x, tuple(kv)


@pytree
class Head:
    """An EAGLE-1/2 head with its weights. Embedding and output matrix are the target's."""

    params: Params
    config: EagleConfig = static()

    @staticmethod
    def init(config: EagleConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "Head":
        """Random weights (normal, 0.02)."""
        row = jnp.zeros((1, 1, config.layers.hidden_size), dtype)
        cache = _empty_cache(config, 1, 0, dtype)
        positions, visible = causal(1, 1)
        sight = Sight.of(config.layers, positions, visible, cache, positions)
        return Head(params=EagleHead(config, dtype).init(key, row, row, sight, cache, ())["params"], config=config)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the weights."""
        return self.params["fc"]["weight"].dtype

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """A cache for `slots` true-feature rows; float32 on CPU, as the target's."""
        return _empty_cache(self.config, batch, slots, activation_dtype(self.dtype))

    def forward(
        self,
        embeddings: Float[Array, "b n h"],
        features: Float[Array, "b n h"],
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n m"],
        cache: Cache,
        beside: tuple[KV, ...] = (),
        beside_positions: Int[Array, "b p"] | None = None,
    ) -> tuple[Float[Array, "b n h"], tuple[KV, ...]]:
        """Guesses the next feature in each of `n` slots.

        Slot i holds the feature of token i and the embedding of token i + 1, stands at position i (the feature's),
        and guesses feature i + 1, whose logits tell token i + 2.

        Args:
            visible: which fresh rows each slot sees: the `p` rows beside first, then the `n` own rows (`m = p + n`).
            beside: K/V of earlier rows of the same draft tree, per layer; they are not in the cache.
            beside_positions: their positions.
        """
        fresh_positions = (
            positions if beside_positions is None else jnp.concatenate([beside_positions, positions], axis=1)
        )
        sight = Sight.of(self.config.layers, positions, visible, cache, fresh_positions)
        module = EagleHead(self.config, self.dtype)
        return module.apply({"params": self.params}, embeddings, features, sight, cache, beside)

    def causal(self, embeddings: Float[Array, "b n h"], features: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        """Guesses over whole sequences, causally, without a cache (training)."""
        batch, n, _ = features.shape
        cache = self.empty_cache(batch, 0)
        cache = Cache(k=cache.k, v=cache.v, length=cache.length, rope_length=jnp.full(batch, n, jnp.int32))
        return self.forward(embeddings, features, *causal(batch, n), cache)[0]


def _empty_cache(config: EagleConfig, batch: int, slots: int, dtype: DTypeLike) -> Cache:
    c = config.layers
    return Cache.empty(
        layers=c.num_hidden_layers,
        batch=batch,
        heads=c.num_key_value_heads,
        slots=slots,
        head_dim=c.head_dim,
        dtype=dtype,
    )
