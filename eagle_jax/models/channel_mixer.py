"""Which channel mixer a decoder layer has: an MLP, sparse experts, or both in parallel (`models.moe`)."""

import flax.linen as nn
from jax.typing import DTypeLike

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.experts_beside_mlp import ExpertsBesideMLP
from eagle_jax.models.layers import MLP
from eagle_jax.models.moe import SparseMLP


def channel_mixer(config: LlamaConfig, sparse: bool, dtype: DTypeLike) -> nn.Module:
    """Returns the channel mixer of a layer of this kind."""
    if sparse and config.experts is not None and config.experts.parallel_mlp:
        return ExpertsBesideMLP(config, dtype)
    if sparse and config.experts is not None:
        return SparseMLP(config.hidden_size, config.experts, dtype, config.residual_multiplier)
    gelu, multiplier = config.activation == "gelu_tanh", config.residual_multiplier
    return MLP(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype, gelu, multiplier)
