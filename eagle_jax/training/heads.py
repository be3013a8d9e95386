"""The head that a run begins with: fresh, of the sizes asked for, or an earlier one."""

import jax
import jax.numpy as jnp

from eagle_jax.config import EagleConfig, LlamaConfig
from eagle_jax.converters import load_head, resolve
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.training.config import HeadConfig


def first(config: HeadConfig, target: LM, key: jax.Array) -> DraftHead:
    """The head to begin with, in float32."""
    if config.start is not None:
        return load_head(resolve(config.start), target, "float32")
    return Head.init(EagleConfig(layers=_layers(config, target.config), fc_bias=config.bias), key, jnp.float32)


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
