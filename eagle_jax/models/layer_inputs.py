"""Per-layer embeddings of each token, in addition to the input embedding (Gemma 4 E2B, E4B).

u_i = (norm(project_i(e) / sqrt(h)) + table_i[token] * sqrt(p)) / sqrt(2)      e is the token's embedding
x = x + norm(projection(gelu(gate(x)) * u_i))                                  at the end of layer i
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.layers import Embedding, Linear, norm, scaled


class LayerInputs(nn.Module):
    """The inputs u_i of all layers; files have one tensor for all tables, and one for all projections."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c, part = self.config, self.config.by_layer
        assert part is not None
        width = c.num_hidden_layers * part.input_size
        self.embed_tokens = Embedding(part.input_vocab_size, width, self.dtype)
        self.projection = Linear(width, dtype=self.dtype)
        self.norm = norm(c, self.dtype)

    def __call__(
        self, tokens: Int[Array, "b n"], embeddings: Float[Array, "b n h"]
    ) -> tuple[Float[Array, "b n p"], ...]:
        layers = self.config.num_hidden_layers
        by_layer = *tokens.shape, layers, -1
        projected = self.projection(embeddings) * self.config.hidden_size**-0.5
        projected = self.norm(projected.reshape(by_layer))
        layer_input = self.embed_tokens(tokens).reshape(by_layer)
        inputs = (projected + scaled(layer_input, layer_input.shape[-1] ** 0.5, self.dtype)) * 2**-0.5
        return tuple(inputs[:, :, i] for i in range(layers))


class LayerInput(nn.Module):
    """Adds the gated input of the layer to the residual stream."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        assert self.config.by_layer is not None
        self.gate = Linear(self.config.by_layer.input_size, dtype=self.dtype)
        self.projection = Linear(self.config.hidden_size, dtype=self.dtype)
        self.norm = norm(self.config, self.dtype)

    def __call__(self, x: Float[Array, "b n h"], layer_input: Float[Array, "b n p"]) -> Float[Array, "b n h"]:
        gated = jax.nn.gelu(self.gate(x), approximate=True) * layer_input
        return x + self.norm(self.projection(gated))
