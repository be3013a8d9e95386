"""The head that a run begins with: fresh, of the method and sizes asked for, or an earlier one."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from eagle_jax.config import Eagle3Config, EagleConfig, LlamaConfig
from eagle_jax.converters import load_head, resolve
from eagle_jax.converters.eagle import default_taps
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.training.config import HeadConfig


def first(config: HeadConfig, target: LM, ids: Int[np.ndarray, " d"] | None, key: jax.Array) -> DraftHead:
    """The head to begin with, in float32.

    Args:
        ids: the tokens that it drafts, ascending; None drafts all.
    """
    if config.start is not None:
        return load_head(resolve(config.start), target, "float32")
    layers = _layers(config, target.config)
    if config.method == "eagle3":
        return _eagle3(config, layers, target, ids, key)
    head = Head.init(EagleConfig(layers=layers, fc_bias=config.bias), key, jnp.float32)
    return head if ids is None else head.trimmed(target, ids)


def taps_of(config: HeadConfig, layers: int) -> tuple[int, ...]:
    """The target layers that an EAGLE-3 head reads: those asked for, or as published 2, the middle one, and N - 3."""
    if config.taps is None:
        return default_taps(layers) or (0, layers // 2, layers)
    if not all(0 <= tap <= layers for tap in config.taps):
        raise ValueError(f"head.taps={config.taps}; expected layers 0 to {layers - 1}, or {layers} for behind the last")
    return config.taps


def _eagle3(
    config: HeadConfig, layers: LlamaConfig, target: LM, ids: Int[np.ndarray, " d"] | None, key: jax.Array
) -> Head3:
    """Begins with the target's final norm and output matrix, and an `fc` that passes on the highest tap: what it drafts
    is at first what the target would say there, which is far better than chance.
    """
    made = Eagle3Config(
        layers=layers,
        taps=taps_of(config, target.config.num_hidden_layers),
        target_hidden_size=target.config.hidden_size,
        draft_vocab_size=target.config.vocab_size if ids is None else len(ids),
        fc_norm=config.fc_norm,
        norm_output=config.norm_output,
    )
    params = Head3.init(made, key, jnp.float32).params
    highest = jnp.eye(layers.hidden_size, dtype=jnp.float32)
    output = _output_matrix(target).astype(jnp.float32)
    params |= {
        "fc": {"weight": params["fc"]["weight"].at[:, -len(highest) :].add(highest)},
        "norm": jax.tree.map(lambda p: p.astype(jnp.float32), target.params["norm"]),
        "lm_head": {"weight": output if ids is None else output[ids]},
    }
    return Head3(params=params, config=made, vocabulary=None if ids is None else jnp.asarray(ids, jnp.int32))


def _output_matrix(target: LM) -> jax.Array:
    tied = target.config.tie_word_embeddings
    return target.params["embed_tokens"]["embedding"] if tied else target.params["lm_head"]["weight"]


def _layers(config: HeadConfig, target: LlamaConfig) -> LlamaConfig:
    """The draft layers: the target's attention, dense, without a window."""
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size or target.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope=target.rope,
    )
