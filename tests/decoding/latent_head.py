"""An EAGLE-3 head with latent attention that guesses well."""

import dataclasses

import jax
import jax.numpy as jnp

from eagle_jax.configs.target import Latent, Rope
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.testing import synthetic_head3


def latent_head3(target: LM, *, error: float) -> Head3:
    """`testing.synthetic_head3` with its attention in the space of latent vectors, which are the embeddings."""
    head = synthetic_head3(target, error=error)
    layers, size = head.config.layers, target.config.hidden_size
    heads, rotated = layers.num_attention_heads, 8
    plain = size // heads
    latent = Latent(rank=size, query_rank=None, plain_dim=plain, value_dim=plain, eps=layers.rms_norm_eps)
    changes = {"head_dim": rotated, "latent": latent, "attention_multiplier": (plain + rotated) ** -0.5}
    layers = dataclasses.replace(layers, rope=Rope(theta=1e4, interleaved=True), **changes)
    config = dataclasses.replace(head.config, layers=layers)
    made, through = Head3.init(config, jax.random.key(1)).params["layers_0"]["self_attn"], jnp.eye(size)
    by_head = through.reshape(heads, plain, size)
    old = head.params["layers_0"]["self_attn"]
    queries = old["q_proj"]["weight"].reshape(heads, plain, -1)
    attention = made | {
        "q_proj": {"weight": jnp.pad(queries, ((0, 0), (0, rotated), (0, 0))).reshape(-1, 2 * size)},
        "kv_a_proj_with_mqa": {"weight": jnp.pad(old["v_proj"]["weight"], ((0, rotated), (0, 0)))},
        "kv_b_proj": {"weight": jnp.concatenate([by_head, by_head], axis=1).reshape(-1, size)},
        "o_proj": old["o_proj"],
    }
    params = head.params | {"layers_0": head.params["layers_0"] | {"self_attn": attention}}
    return dataclasses.replace(head, params=params, config=config)
