"""Parts that the initial heads of all methods share."""

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


class HeadInit(NamedTuple):
    """Argument of `HeadKind.begin`, which returns the initial head in float32 on one device.

    Attributes:
        config: settings of the head.
        target: the target.
        sizes: the target's stored sizes, if sharding replicates its key/value heads (`sharding.widened`).
        ids: the draft vocabulary as ascending target ids; None for the whole vocabulary.
        key: PRNG key of the initial weights.
        steps: number of trained draft steps, which is the number of Medusa's and Hydra's heads.
    """

    config: HeadConfig
    target: LM
    sizes: LlamaConfig
    ids: Int[np.ndarray, " d"] | None
    key: jax.Array
    steps: int

    @property
    def vocabulary(self) -> jax.Array | None:
        """The draft vocabulary as an array; None for the whole vocabulary."""
        return None if self.ids is None else jnp.asarray(self.ids, jnp.int32)


def taps_of(config: HeadConfig, layers: int) -> tuple[int, ...]:
    """Returns the target layers that an EAGLE-3 or P-EAGLE head reads: the configured ones, or 2, N/2 and N - 3."""
    if config.taps is None:
        return default_taps(layers) or (0, layers // 2, layers)
    if not all(0 <= tap <= layers for tap in config.taps):
        raise ValueError(
            f"head.taps={config.taps}; expected layers 0 to {layers - 1}, or {layers} for the output of the last"
        )
    return config.taps


def output_matrix(target: LM) -> jax.Array:
    """Returns the target's output matrix, in float32 and unsharded."""
    return jnp.asarray(to_host(dense(target.output_matrix)), jnp.float32)


def draft_layers(config: HeadConfig, target: LlamaConfig, count: int) -> LlamaConfig:
    """Returns the config of the draft layers: dense, with the target's attention but no window.

    For a target with latent attention they have, as published for DeepSeek-V3, heads of size 128, as many as fill the
    width, and 8 key/value heads.
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
