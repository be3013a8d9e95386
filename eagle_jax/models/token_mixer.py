"""The mixer of tokens in a layer, by what its config says."""

from jax.typing import DTypeLike

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.attention import Attention
from eagle_jax.models.latent_attention import LatentAttention


def attention_mixer(
    config: LlamaConfig, dtype: DTypeLike, rotates: bool = True, kv: str = "both"
) -> Attention | LatentAttention:
    """Returns the mixer of a layer that is not recurrent; arguments are as in `Attention`."""
    return Attention(config, dtype, rotates, kv) if config.latent is None else LatentAttention(config, dtype)
