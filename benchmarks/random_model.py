"""Models of random weights, for scripts whose question is what shapes cost."""

import jax
import jax.numpy as jnp

import eagle_jax
from eagle_jax.config import LlamaConfig, Rope
from eagle_jax.models import layout
from eagle_jax.models.lm import LM

HEAD_DIM, CONTEXT = 64, 1024


def random_model(
    vocab_size: int, width: int, layers: int, dtype: str, *, queries: int = 1, tied: bool = False
) -> tuple[eagle_jax.Model, int]:
    """A model without head and tokenizer, ready to decode, and the bytes of its weights.

    Args:
        queries: heads that share keys and values.
        tied: whether the table of tokens is the output matrix too.
    """
    heads = width // HEAD_DIM
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // queries,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope=Rope(theta=10000.0),
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=tied,
    )
    params = LM.init(config, jax.random.key(0), jnp.dtype(dtype)).params
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    target = LM(params=layout.for_decoding(params, HEAD_DIM), config=config)
    return eagle_jax.Model(target=target, head=None, tokenizer=None, stop_ids=(), context=CONTEXT), size
