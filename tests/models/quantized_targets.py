"""Tiny targets whose matrices are quantized as files have them."""

import dataclasses

import jax

from eagle_jax.models.lm import LM
from eagle_jax.models.quant import flat
from eagle_jax.testing import TINY
from tests.ops.quantized_weights import random_weight

CONFIG = dataclasses.replace(
    TINY, hidden_size=128, intermediate_size=256, head_dim=32, num_hidden_layers=1, tie_word_embeddings=True
)
MATRICES = ("_proj/weight", "embed_tokens/embedding")


def quantized_target(kind: str, config=CONFIG) -> LM:
    """A random target whose matrices and tied table are of one kind; its inputs have one order per size."""
    params = LM.init(config, jax.random.key(0)).params
    for path, leaf in flat(params):
        *parents, name = path.split("/")
        node = params
        for parent in parents:
            node = node[parent]
        if path.endswith(MATRICES):
            node[name] = random_weight(kind, *leaf.shape, seed=leaf.shape[1], size=0.2)
    return LM(params=params, config=config)
