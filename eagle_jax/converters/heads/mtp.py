"""Reads the layer for multi-token prediction (MTP) in a target's files as a draft head.

    Qwen3-Next, Qwen3.5          GLM-4.5, DeepSeek-V3 (N layers)
    mtp.fc                       model.layers.N.eh_proj             fc, `[h, 2h]` of [embedding ; feature]
    mtp.pre_fc_norm_embedding    model.layers.N.enorm               embedding_norm
    mtp.pre_fc_norm_hidden       model.layers.N.hnorm               feature_norm
    mtp.layers.0.*               model.layers.N.*                   layers_0, a layer as the target's with attention
    mtp.norm                     model.layers.N.shared_head.norm    norm of the output

The normed output goes to the target's output matrix and to the next step. Copies of the embedding and output matrix are
not read.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax

from eagle_jax.configs.heads import EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import llama, names, reading
from eagle_jax.converters.families import tensors
from eagle_jax.converters.files import Weights
from eagle_jax.converters.heads import window
from eagle_jax.converters.heads.kinds import CheckedHead
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.converters.writing import MODEL_FILE
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spelling:
    """Tensor names of the layer in a target's files.

    Attributes:
        fc, embedding_norm, feature_norm, norm: names as above, without `.weight`.
        layer: prefix of the decoder layer's tensors.
        others: regular expression of the target's tensors and of copies.
    """

    fc: str
    embedding_norm: str
    feature_norm: str
    norm: str
    layer: str
    others: str


FORMATS: tuple[str, ...] = ()  # the layer stays in its target's files
QWEN = Spelling(
    fc="mtp.fc",
    embedding_norm="mtp.pre_fc_norm_embedding",
    feature_norm="mtp.pre_fc_norm_hidden",
    norm="mtp.norm",
    layer="mtp.layers.0.",
    others=r"(?!mtp\.).*",
)
_EXTRA_LAYER = re.compile(r"model\.layers\.\d+\.eh_proj\.weight")


def check_present(folder: pathlib.Path) -> None:
    """Raises ValueError for a target's folder without such a layer, by tensor names."""
    if not is_present(Weights(folder).info):
        raise ValueError(f"{folder} has no layer for multi-token prediction (MTP); name a head, or leave it out")


def is_present(info: Mapping[str, TensorInfo]) -> bool:
    """Returns whether a target's files hold such a layer."""
    return kind_of(info) is not None


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    has_mtp = f"{QWEN.fc}.weight" in info or any(_EXTRA_LAYER.fullmatch(name) for name in info)
    return "mtp" if has_mtp else None


def spelling_of(target: LlamaConfig, info: Mapping[str, TensorInfo]) -> Spelling:
    """Returns the names in a target's files: Qwen's, or names of a layer after the target's last layer."""
    if f"{QWEN.fc}.weight" in info:
        return QWEN
    layer = f"model.layers.{target.num_hidden_layers}."
    escaped = re.escape(layer)
    return Spelling(
        fc=f"{layer}eh_proj",
        embedding_norm=f"{layer}enorm",
        feature_norm=f"{layer}hnorm",
        norm=f"{layer}shared_head.norm",
        layer=layer,
        others=rf"(?!{escaped}).*|{escaped}(embed_tokens|shared_head\.head)\.weight",
    )


def config_of(target: LlamaConfig) -> EagleConfig:
    """Returns the config of the head in a target's files: one decoder layer as the target's layers with attention."""
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


def divide(weights: Weights, target: LlamaConfig) -> None:
    """Divides tensors of this layer that hold several parameters (`Weights.divide`)."""
    config, spelling = config_of(target), spelling_of(target, weights.info)
    expected = names.expected(_rules(config, spelling), _shapes(config))
    tensors.divide_layer(weights, config.layers, expected, spelling.layer)


def format_of(entries: Mapping[str, Any]) -> str:
    return "mtp"


def check(weights: Weights, target: LlamaConfig | None) -> CheckedHead:
    target = llama.read_config(weights.folder) if target is None else target
    config, spelling = config_of(target), spelling_of(target, weights.info)
    divide(weights, target)
    table, param_shapes = _rules(config, spelling), _shapes(config)
    names.check(weights, table, param_shapes, (spelling.others,))
    return CheckedHead(config, names.slots(table, param_shapes), MODEL_FILE, {})


def load(weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None) -> Head:
    """Loads the head in these files; see `kinds.load_head`.

    Raises:
        ValueError: `changes` has more than a window, or tensors are missing, unknown, or of another shape.
    """
    if other := sorted(changes.keys() - {window.WINDOW}):
        raise ValueError(f"head_config has {other[0]}; of a target's own layer (MTP) only {window.WINDOW} can be set")
    # The config of a target on several devices may count repeated key/value heads.
    heads = llama.read_config(weights.folder).num_key_value_heads
    file_config = dataclasses.replace(target.config, num_key_value_heads=heads)
    config, spelling = config_of(file_config), spelling_of(file_config, weights.info)
    config = dataclasses.replace(config, layers=window.with_window(config.layers, changes))
    divide(weights, file_config)
    table, param_shapes = _rules(config, spelling), _shapes(config)
    names.check(weights, table, param_shapes, (spelling.others,))
    load_dtype = names.stored_dtype(weights, f"{spelling.fc}.weight") if dtype is None else dtype
    return Head(params=reading.read_params(weights, table, param_shapes, load_dtype, scheme=scheme), config=config)


def save(head: Head, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None) -> None:
    raise ValueError("a layer for multi-token prediction (MTP) lies in its target's files; keep those")


def _rules(config: EagleConfig, spelling: Spelling) -> tuple[names.Rule, ...]:
    norms = (names.Rule(f"{getattr(spelling, name)}.weight", f"{name}/scale") for name in _NORMS)
    layer = (
        dataclasses.replace(rule, key=spelling.layer + rule.key.removeprefix("layers.{i}."))
        for rule in tensors.rules_of(config.layers, "")
    )
    return names.Rule(f"{spelling.fc}.weight", "fc/weight"), *norms, *layer


_NORMS = ("embedding_norm", "feature_norm", "norm")


@functools.cache
def _shapes(config: EagleConfig) -> names.Params:
    return jax.eval_shape(functools.partial(Head.init, config), jax.random.key(0)).params
