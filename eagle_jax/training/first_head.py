"""What the heads that trainings begin with are made of."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters.heads.eagle import default_taps
from eagle_jax.models.lm import LM
from eagle_jax.ops.quantized import dense
from eagle_jax.sharding import to_host
from eagle_jax.training.settings import HeadConfig


class Start(NamedTuple):
    """What a head is begun with; `HeadKind.begin` takes one and gives the head, in float32, on one device.

    Attributes:
        config: the settings.
        target: the model it will draft for.
        sizes: the target's as stored, where it keeps key/value heads several times (`sharding.with_repeated_kv_heads`).
        ids: the tokens that it drafts, ascending; None drafts all.
        key: of the random numbers it begins with.
        steps: draft steps that are trained: heads of Medusa and Hydra.
    """

    config: HeadConfig
    target: LM
    sizes: LlamaConfig
    ids: Int[np.ndarray, " d"] | None
    key: jax.Array
    steps: int

    @property
    def vocabulary(self) -> jax.Array | None:
        """Target ids of the drafted tokens, as heads keep them."""
        return None if self.ids is None else jnp.asarray(self.ids, jnp.int32)


def taps_of(config: HeadConfig, layers: int) -> tuple[int, ...]:
    """Returns the target layers that an EAGLE-3 or P-EAGLE head reads: those asked for, or 2, the middle and N - 3."""
    if config.taps is None:
        return default_taps(layers) or (0, layers // 2, layers)
    if not all(0 <= tap <= layers for tap in config.taps):
        raise ValueError(f"head.taps={config.taps}; expected layers 0 to {layers - 1}, or {layers} for behind the last")
    return config.taps


def output_matrix(target: LM) -> jax.Array:
    """Returns the target's output matrix, in float32 on this process."""
    return jnp.asarray(to_host(dense(target.output_matrix)), jnp.float32)


def draft_layers(config: HeadConfig, target: LlamaConfig, count: int) -> LlamaConfig:
    """Returns the draft layers: the target's attention, dense, without a window.

    Heads of targets with latent attention share a small part of each key and have no keys and values of their own; a
    draft layer has as published ones for DeepSeek-V3 heads of 128 numbers, as many as make its width, and 8 for keys.
    """
    size, heads, kv_heads = target.head_dim, target.num_attention_heads, target.num_key_value_heads
    if target.latent is not None:
        size = min(128, target.hidden_size)
        heads = config.num_attention_heads or target.hidden_size // size
        kv_heads = math.gcd(heads, 8)
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size or target.intermediate_size,
        num_hidden_layers=count,
        num_attention_heads=config.num_attention_heads or heads,
        num_key_value_heads=config.num_key_value_heads or kv_heads,
        head_dim=size,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope=target.rope.for_heads(),
    )
