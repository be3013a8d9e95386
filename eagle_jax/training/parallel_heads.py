"""Initial Medusa and Hydra heads: identity blocks and the target's output matrix, as published."""

import dataclasses

import jax
import jax.numpy as jnp

from eagle_jax.configs.heads import HydraConfig, MedusaConfig
from eagle_jax.models.any_head import Params
from eagle_jax.models.heads import Hydra, Medusa
from eagle_jax.models.lm import LM
from eagle_jax.training.initial_head import HeadInit, draft_layers, output_matrix


def medusa(start: HeadInit) -> Medusa:
    """Returns Medusa heads, one per draft step."""
    heads = Medusa.init(MedusaConfig(**_sizes(start)), start.key, jnp.float32)
    return dataclasses.replace(heads, params=_with_identity_blocks(heads.params, start.target))


def hydra(start: HeadInit) -> Hydra:
    """Returns Hydra heads, one per draft step, whose first blocks pass on the hidden state."""
    prefix = draft_layers(start.config, start.sizes, 1) if start.config.prefix else None
    heads = Hydra.init(HydraConfig(**_sizes(start), prefix=prefix), start.key, jnp.float32)
    return dataclasses.replace(heads, params=_with_identity_blocks(heads.params, start.target))


def _sizes(start: HeadInit) -> dict[str, int]:
    c = start.sizes
    return {
        "hidden_size": c.hidden_size,
        "vocab_size": c.vocab_size,
        "num_heads": start.steps,
        "num_layers": start.config.layers,
    }


def _with_identity_blocks(params: Params, target: LM) -> Params:
    output = output_matrix(target)

    def first_value(path: tuple, value: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if names[-2:] == ["linear", "weight"]:
            return jnp.zeros_like(value)
        if names[-2:] == ["res_connection", "weight"]:
            return value.at[:, : len(value)].add(jnp.eye(len(value)))
        return output if names[-2:] == ["lm_head", "weight"] else value

    return jax.tree_util.tree_map_with_path(first_value, params)
