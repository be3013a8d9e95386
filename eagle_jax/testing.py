"""Tiny models made on the spot, for tests of this library and of what is built on it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.config import Eagle3Config, EagleConfig, LlamaConfig, Rope
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
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

    head = Head.init(EagleConfig(layers=_one_layer(config), fc_bias=True), head_key)
    size = config.hidden_size
    through = jnp.concatenate([jnp.eye(size), jnp.zeros((size, size))], axis=1)
    noise = error / size**0.5 * jax.random.normal(noise_key, through.shape)
    head_params = dict(head.params)
    head_params["fc"] = {"weight": through + noise, "bias": head.params["fc"]["bias"]}
    return target, dataclasses.replace(head, params=head_params)


def synthetic_head3(target: LM, *, seed: int = 0, error: float = 0.2, **flags: Any) -> Head3:
    """An EAGLE-3 head whose guesses for a target of `synthetic_pair` are right for part of the time.

    Its attention looks mostly at the slot itself and passes the embedding through, with noise of relative size `error`.

    Args:
        flags: fields of `Eagle3Config` that are not its defaults; the taps are all that the target has.
    """
    c = target.config
    taps = (0, c.num_hidden_layers // 2, c.num_hidden_layers)
    given: dict[str, Any] = {"target_hidden_size": c.hidden_size, "draft_vocab_size": c.vocab_size, "taps": taps}
    layers = dataclasses.replace(_one_layer(c), num_key_value_heads=c.num_attention_heads)
    head = Head3.init(Eagle3Config(layers=layers, **{**given, **flags}), jax.random.key(seed))

    size, keys = c.hidden_size, iter(jax.random.split(jax.random.key(seed + 1), 4))
    embedding = jnp.concatenate([jnp.eye(size), jnp.zeros((size, size))], axis=1)

    def noisy(through: jax.Array) -> dict[str, jax.Array]:
        return {"weight": through + error / size**0.5 * jax.random.normal(next(keys), through.shape)}

    attention = {"q_proj": {"weight": 3.0 * embedding}, "k_proj": noisy(embedding)}
    attention |= {"v_proj": noisy(embedding), "o_proj": noisy(jnp.eye(size))}
    params = head.params | {"layers_0": head.params["layers_0"] | {"self_attn": attention}}
    params["fc"] = {"weight": head.params["fc"]["weight"] * error}
    params["lm_head"] = {"weight": head.drafted_part(target.params["lm_head"]["weight"].T).T}
    return dataclasses.replace(head, params=params)


def _one_layer(config: LlamaConfig) -> LlamaConfig:
    """A draft layer like the target's: dense, within the window, if there is one."""
    return dataclasses.replace(config, num_hidden_layers=1, experts=None, full_attention_layers=())
