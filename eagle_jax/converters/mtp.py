"""The layer for multi-token prediction in a target's own files (MTP), as a draft head: Qwen3-Next's and Qwen3.5's.

mtp.fc.weight                       fc                  [h, 2h] of [embedding ; feature]
mtp.pre_fc_norm_embedding.weight    embedding_norm
mtp.pre_fc_norm_hidden.weight       feature_norm
mtp.layers.0.*                      layers_0            a layer with attention, as the target has them
mtp.norm.weight                     norm                what it gives, for the output matrix and the next step
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from eagle_jax.config import LlamaConfig
from eagle_jax.converters import family_tensors, names, reading, window
from eagle_jax.converters.files import Weights
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.head_configs import EagleConfig
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme

PREFIX = "mtp."
OTHERS = (rf"(?!{PREFIX}).*",)  # the target's tensors


def holds(info: Mapping[str, TensorInfo]) -> bool:
    """Whether a target's files hold such a layer."""
    return f"{PREFIX}fc.weight" in info


def config_of(target: LlamaConfig) -> EagleConfig:
    """The head in the files of a target: one of its layers with attention, with all that they have."""
    experts = None if target.experts is None else dataclasses.replace(target.experts, mlp_only_layers=())
    layers = dataclasses.replace(
        target,
        num_hidden_layers=1,
        full_attention_layers=(),
        no_rope_layers=(),
        delta_net=None,
        experts=experts,
    )
    return EagleConfig(layers=layers, fc_bias=False, normed=True)


def load(weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None) -> Head:
    """The head in these files; see `heads.load_head`.

    Raises:
        ValueError: `changes` other than a window, or tensors that are missing, unknown, or of another shape.
    """
    if other := sorted(changes.keys() - {window.WINDOW}):
        raise ValueError(f"head_config has {other[0]}; of a target's own layer (MTP) only {window.WINDOW} can be set")
    config = config_of(target.config)
    config = dataclasses.replace(config, layers=window.with_window(config.layers, changes))
    table, needed = _rules(config), _shapes(config)
    family_tensors.divide(weights, config.layers, names.expected(table, needed), PREFIX)
    names.check(weights, table, needed, OTHERS)
    chosen = names.stored_dtype(weights, f"{PREFIX}fc.weight") if dtype is None else dtype
    return Head(params=reading.read_params(weights, table, needed, chosen, scheme=scheme), config=config)


def _rules(config: EagleConfig) -> tuple[names.Rule, ...]:
    norms = {"pre_fc_norm_embedding": "embedding_norm", "pre_fc_norm_hidden": "feature_norm", "norm": "norm"}
    return (
        names.Rule(f"{PREFIX}fc.weight", "fc/weight"),
        *(names.Rule(f"{PREFIX}{theirs}.weight", f"{ours}/scale") for theirs, ours in norms.items()),
        *family_tensors.rules_of(config.layers, PREFIX),
    )


@functools.cache
def _shapes(config: EagleConfig) -> names.Params:
    return jax.eval_shape(functools.partial(Head.init, config), jax.random.key(0)).params
