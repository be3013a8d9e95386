"""Tiny models made on the spot, for tests of this library and of what is built on it."""

import dataclasses

import jax
import jax.numpy as jnp

from eagle_jax.config import EagleConfig, LlamaConfig, Rope
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM

TINY = LlamaConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope=Rope(theta=10000.0),
)


def synthetic_pair(
    config: LlamaConfig = TINY, *, seed: int = 0, strength: float = 0.2, error: float = 0.2
) -> tuple[LM, Head]:
    """A random target, and a head whose guesses are right for part of the time.

    The target's layers add little to the residual stream (`strength`), so its next token depends mostly on the last
    one. The head passes the embedding through and adds noise of relative size `error`: 0 guesses as well as the
    embedding allows, 1 badly.
    """
    target_key, head_key, noise_key = jax.random.split(jax.random.key(seed), 3)
    target = LM.init(config, target_key)
    params = dict(jax.tree.map(lambda x: x * 8.0 * strength if x.ndim == 2 else x, target.params))
    params["embed_tokens"] = {"embedding": target.params["embed_tokens"]["embedding"] * 50.0}
    if not config.tie_word_embeddings:
        params["lm_head"] = {"weight": target.params["lm_head"]["weight"] * 50.0}
    target = LM(params=params, config=config)

    head = Head.init(EagleConfig(layers=dataclasses.replace(config, num_hidden_layers=1), fc_bias=True), head_key)
    size = config.hidden_size
    through = jnp.concatenate([jnp.eye(size), jnp.zeros((size, size))], axis=1)
    noise = error / size**0.5 * jax.random.normal(noise_key, through.shape)
    head_params = dict(head.params)
    head_params["fc"] = {"weight": through + noise, "bias": head.params["fc"]["bias"]}
    return target, Head(params=head_params, config=head.config)
