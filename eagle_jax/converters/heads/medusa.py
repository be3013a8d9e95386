"""Medusa heads on disk, in their authors' format.

    medusa_lm_head.safetensors, .pt   {k}.{l}.linear.weight, .bias   block l of head k; weights [h, h]
                                      {k}.{L}.weight                 its output matrix [v, h], after L blocks
    a whole model (Medusa-2)          the same names after `medusa_head.`, among the tensors of its target
    config.json                       medusa_num_heads, medusa_num_layers, base_model_name_or_path

Sizes follow from the tensors: some published configs say 2 heads where the files hold 5.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.heads import MedusaConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names
from eagle_jax.converters.families import lookup
from eagle_jax.converters.files import Weights
from eagle_jax.converters.heads import parallel, window
from eagle_jax.converters.heads.kinds import CheckedHead
from eagle_jax.converters.hf import values
from eagle_jax.converters.hf.keys import Tables, check_head
from eagle_jax.converters.names import Rule, linear
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.heads import Medusa
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme

FORMATS = ("medusa",)
FILE = "medusa_lm_head.safetensors"
MEDUSA2_PREFIX = "medusa_head."

# The target's tensors in the folder of a whole model.
UNREAD_NAMES = (r"model\..*", r"lm_head\.weight")


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    """Detects Medusa heads, alone or in a whole model."""
    return "medusa" if any(f"{prefix}0.0.linear.weight" in info for prefix in ("", MEDUSA2_PREFIX)) else None


def format_of(entries: Mapping[str, Any]) -> str:
    return "medusa"


def check(weights: Weights, target: LlamaConfig | None) -> CheckedHead:
    layout = read_layout(weights, {})
    return CheckedHead(layout.config, names.slots(layout.rules, parallel.shapes(layout.config)), FILE, {})


def load(weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None) -> AnyHead:
    return parallel.load(weights, read_layout(weights, changes), target.config, dtype, scheme)


def save(head: Medusa, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None) -> None:
    parallel.save(head, folder, rules(head.config), entries_for(head.config, target_name), FILE)


def read_layout(weights: Weights, changes: Mapping[str, Any]) -> parallel.Layout:
    """Reads names and sizes of the heads in these files; see `parallel.read_layout`."""

    def read(entries: dict[str, Any]) -> parallel.Layout:
        window.refuse(changes, "Medusa heads")
        prefix, config = prefix_of(weights.info), read_config(weights.info, entries)
        return parallel.Layout(config, rules(config, prefix), UNREAD_NAMES if prefix else ())

    return parallel.read_layout(weights, changes, read)


def rules(config: MedusaConfig, prefix: str = "") -> tuple[Rule, ...]:
    """Returns the table of names."""
    table: list[Rule] = []
    for k in range(config.num_heads):
        for layer in range(config.num_layers):
            table += linear(f"{prefix}{k}.{layer}.linear", f"heads_{k}/layers_{layer}/linear")
        table.append(Rule(f"{prefix}{k}.{config.num_layers}.weight", f"heads_{k}/lm_head/weight"))
    return tuple(table)


def prefix_of(info: Mapping[str, TensorInfo]) -> str:
    """Returns the prefix of the heads' tensor names."""
    return MEDUSA2_PREFIX if f"{MEDUSA2_PREFIX}0.0.linear.weight" in info else ""


def read_config(info: Mapping[str, TensorInfo], entries: Mapping[str, Any]) -> MedusaConfig:
    """Builds the config from the tensors. Raises ValueError if `config.json` disagrees with them."""
    prefix = prefix_of(info)
    if not prefix:  # the config of a whole model is its target's
        neutral = lookup.IGNORED | {"model_type", "architectures"}
        check_head(entries, Tables(read=lookup.MEDUSA, fixed={}, neutral=neutral))
    blocks = [
        (int(k), int(layer))
        for k, layer in re.findall(rf"^{re.escape(prefix)}(\d+)\.(\d+)\.linear\.weight$", "\n".join(info), re.MULTILINE)
    ]
    heads, layers = (1 + max(column) for column in zip(*blocks, strict=True))
    value = values.integer(entries, "medusa_num_layers", layers)
    if value != layers:
        raise ValueError(f"medusa_num_layers={value}, and the tensors have {layers} blocks a head; expected as many")
    value = values.integer(entries, "medusa_num_heads", heads)
    if not 1 <= value <= heads:
        raise ValueError(f"medusa_num_heads={value}, and the tensors make {heads} heads; expected no more than those")
    output = f"{prefix}0.{layers}.weight"
    if output not in info or len(info[output].shape) != 2:
        raise ValueError(f"the weights lack a matrix {output}; expected the output matrix of head 0 there")
    vocab_size, hidden_size = info[output].shape
    return MedusaConfig(hidden_size=hidden_size, vocab_size=vocab_size, num_heads=heads, num_layers=layers)


def entries_for(config: MedusaConfig, target_name: str | None) -> dict[str, Any]:
    """Returns the `config.json`; the authors' code loads the target that it names."""
    return {
        "medusa_num_heads": config.num_heads,
        "medusa_num_layers": config.num_layers,
        "base_model_name_or_path": target_name,
    }
