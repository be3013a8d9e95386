"""A target model as one value: parameters, configuration, and the passes over them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax import ops
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.cache import Cache, LayerState, NoState, empty_kv
from eagle_jax.models.delta_state import DeltaState
from eagle_jax.models.layout import for_files
from eagle_jax.models.llama import Llama
from eagle_jax.models.random_params import random_params
from eagle_jax.models.target import Output
from eagle_jax.ops import FlatRows, LayerRows
from eagle_jax.ops.quantized import QuantArray, dense
from eagle_jax.struct import pytree, static

Params = dict[str, Any]


@pytree
class LM:
    """A Llama with its weights, the `Target` that comes with the package.

    A pytree, so that it passes through `jit`, and the only caller of the Flax module.
    """

    params: Params
    config: LlamaConfig = static()

    @staticmethod
    def init(config: LlamaConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "LM":
        """Initialises random weights (normal, 0.02)."""
        cache, tokens = empty_cache(config, 1, 0, dtype), jnp.zeros((1, 1), jnp.int32)
        return LM(params=random_params(Llama(config, np.dtype(dtype)), key, tokens, cache), config=config)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the weights."""
        return self.params["embed_tokens"]["embedding"].dtype

    @property
    def activations(self) -> np.dtype:
        """Dtype of embeddings, hidden states and cache; float32 on CPU, where XLA rewrites whole bfloat16 caches."""
        return ops.activation_dtype(self.dtype)

    @property
    def table(self) -> Float[Array, "v h"]:
        """The token table as files have it."""
        return dense(ops.unpack(self.params["embed_tokens"]["embedding"]))

    @property
    def output_matrix(self) -> Array | QuantArray:
        """The output matrix as in files, `[v, h]`; the embedding table if they are tied."""
        tied = self.config.tie_word_embeddings
        return ops.unpack(self.params["embed_tokens"]["embedding"] if tied else self.params["lm_head"]["weight"])

    @property
    def stored_params(self) -> Params:
        """The parameters as files have them."""
        return for_files(self.params)

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """Returns a cache for `slots` tokens a row."""
        return empty_cache(self.config, batch, slots, self.activations)

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        """Returns token embeddings."""
        return self._apply(tokens, method=Llama.embed)

    def logits(self, hidden: Float[Array, "b n h"], num_valid: Int[Array, ""] | None = None) -> Float[Array, "b n v"]:
        """Computes the output logits in float32 for final hidden states (or for a draft head's guess of them).

        Args:
            num_valid: leading rows of `[b * n]` that are not padding; the others' logits are finite. None is all.
        """
        with jax.named_scope("lm_head"):
            return self._apply(hidden, num_valid, method=Llama.logits)

    def forward(
        self,
        tokens: Int[Array, "b n"],
        positions: Int[Array, "b n"],
        ancestors: Bool[Array, "b n m"],
        cache: Cache,
        taps: tuple[int, ...] = (),
        draft_kv: tuple[LayerRows, ...] = (),
        draft_positions: Int[Array, "b p"] | None = None,
        flat: FlatRows | None = None,
        is_chain: bool = False,
    ) -> Output:
        """Runs one forward pass over a tree of fresh tokens; each sees its committed prefix, its ancestors and itself.

        A model that drafts reads its tree level by level: `draft_kv` holds the levels before (per layer, p rows at
        `draft_positions`), and `ancestors` names of those first, then of this pass's own rows (m = p + n).

        The tokens of all requests may lie in one row of the pass, `flat`: then nothing is computed for padding between
        them. `cache` is still that of the requests.

        Args:
            is_chain: each token sees all before it, as `ancestors` says.
        """
        args = tokens, positions, ancestors, cache, taps, draft_kv, draft_positions, flat, is_chain
        hidden, tapped, kv = self._apply(*args)
        return Output(hidden=hidden, taps=tapped, kv=kv)

    def causal(self, tokens: Int[Array, "b n"], taps: tuple[int, ...] = ()) -> Output:
        """Runs one forward pass over whole sequences, causally, without a cache."""
        batch, n = tokens.shape
        cache = self.empty_cache(batch, 0)
        cache = dataclasses.replace(cache, rope_length=jnp.full(batch, n, jnp.int32))
        return self.forward(tokens, *causal(batch, n), cache, taps, is_chain=True)

    def __call__(self, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n h"], Float[Array, "b n v"]]:
        """Computes the hidden states and logits of whole sequences, causally, without a cache."""
        hidden = self.causal(tokens).hidden
        return hidden, self.logits(hidden)

    def _apply(self, *args, method=None):
        return Llama(self.config, self.dtype).apply({"params": self.params}, *args, method=method)


def causal(batch: int, n: int) -> tuple[Int[Array, "b n"], Bool[Array, "b n n"]]:
    """Computes positions and ancestors of a chain that starts a text."""
    positions = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[None], (batch, n))
    return positions, jnp.broadcast_to(jnp.tril(jnp.ones((n, n), bool))[None], (batch, n, n))


def empty_cache(config: LlamaConfig, batch: int, slots: int, dtype: DTypeLike) -> Cache:
    """Returns a cache for the layers of a target or of a draft head."""

    def state(layer: int) -> LayerState:
        if config.delta_net is not None and config.is_recurrent(layer):
            return DeltaState.empty(config.delta_net, batch, dtype)
        if config.latent is not None:
            return empty_kv(batch, 1, slots, config.latent.rank + config.head_dim, dtype, has_values=False)
        if config.kv_of(layer) == "none":
            return NoState()
        layer_config = config.layer(layer)
        return empty_kv(batch, layer_config.num_key_value_heads, slots, layer_config.head_dim, dtype)

    return Cache.of(tuple(state(i) for i in range(config.num_hidden_layers)), batch)
