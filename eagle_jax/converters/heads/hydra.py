"""Hydra heads on disk, in their authors' format.

    hydra_lm_head.pt    hydra_mlp.{k}.{b}.linear.weight, .bias     the blocks of head k; the first reads k + 2 vectors
                        hydra_mlp.{k}.{b}.res_connection.*         the residual connection of the first block
                        hydra_lm_head.{k}.*                        the output matrix and bias of head k
      Hydra++ only      prefix_embeding_layer.layers.0.*, .norm    the layer before the heads (spelt so)
    config.json         hydra_num_heads, hydra_num_layers, hydra_head_arch, grounded_heads, hidden_state_offset

`hydra_head_arch` "mlp" numbers blocks from 0; "prefix-mlp" (Hydra++) has a dropout before each block and output matrix,
which has a number but no weights: b = 1, 3, .. and `hydra_lm_head.{k}.1`. The layer before the heads has the target's
layer config; its tensors show only widths and biases.

The authors' code reads only `hydra_lm_head.pt`; this package writes the same tensors as safetensors.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.heads import HydraConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import names
from eagle_jax.converters.families import lookup
from eagle_jax.converters.files import Weights
from eagle_jax.converters.heads import parallel, window
from eagle_jax.converters.heads.kinds import CheckedHead
from eagle_jax.converters.hf import values
from eagle_jax.converters.hf.keys import Tables, check_head
from eagle_jax.converters.names import Rule, linear, one_layer
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.heads import Hydra
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme

FORMATS = ("hydra",)
FILE = "hydra_lm_head.safetensors"
MLP, PREFIX_MLP = "mlp", "prefix-mlp"
LAYER = "prefix_embeding_layer.layers.0"

# The layer's class has an embedding that it never uses, and saves rotary frequencies, which follow from the config.
UNREAD_NAMES = (r"prefix_embeding_layer\.embed_tokens\.weight", rf"{re.escape(LAYER)}\.self_attn\.rotary_emb\.inv_freq")

_READ = frozenset({"hydra_num_heads", "hydra_num_layers", "hydra_head_arch"})
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "grounded_heads": (True,),
    "hidden_state_offset": (0,),
    "hydra_head_arch": (MLP, PREFIX_MLP),
}
PREFIX_NOTE = "a decoder layer as its target's"  # shown by `inspect` without a target


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    return "hydra" if any(key.startswith("hydra_mlp.") for key in info) else None


def format_of(entries: Mapping[str, Any]) -> str:
    return "hydra"


def check(weights: Weights, target: LlamaConfig | None) -> CheckedHead:
    layout = read_layout(weights, target, {})
    slots = names.slots(layout.rules, parallel.shapes(layout.config))
    return CheckedHead(
        layout.config, slots, FILE, {} if layout.config.prefix is None or target else {"prefix": PREFIX_NOTE}
    )


def load(weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None) -> AnyHead:
    return parallel.load(weights, read_layout(weights, target.config, changes), target.config, dtype, scheme)


def save(head: Hydra, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None) -> None:
    parallel.save(head, folder, rules(head.config), entries_for(head.config, target_name), FILE)


def read_layout(weights: Weights, target: LlamaConfig | None, changes: Mapping[str, Any]) -> parallel.Layout:
    """Reads names and sizes of the heads in these files; see `parallel.read_layout`."""

    def read(entries: dict[str, Any]) -> parallel.Layout:
        config = read_config(weights.info, entries, target)
        if config.prefix is None:
            window.refuse(changes, "Hydra heads without a layer before them")
            return parallel.Layout(config, rules(config), ())
        config = dataclasses.replace(config, prefix=window.with_window(config.prefix, changes))
        return parallel.Layout(config, rules(config), UNREAD_NAMES)

    return parallel.read_layout(weights, changes, read)


def rules(config: HydraConfig) -> tuple[Rule, ...]:
    """Returns the table of names."""
    table: list[Rule] = []
    if config.prefix is not None:
        table += [*one_layer(LAYER, "prefix/layers_0"), Rule("prefix_embeding_layer.norm.weight", "prefix/norm/scale")]
    for k in range(config.num_heads):
        for layer in range(config.num_layers):
            key = f"hydra_mlp.{k}.{layer if config.prefix is None else 2 * layer + 1}"
            for part in ("linear", "res_connection"):
                table += linear(f"{key}.{part}", f"heads_{k}/layers_{layer}/{part}")
        table += linear(f"hydra_lm_head.{k}{'' if config.prefix is None else '.1'}", f"heads_{k}/lm_head")
    return tuple(table)


def read_config(info: Mapping[str, TensorInfo], entries: Mapping[str, Any], target: LlamaConfig | None) -> HydraConfig:
    """Builds the config of heads from their tensors and `config.json`.

    Args:
        target: config of the layer before the heads; None substitutes a layer of the same sizes.

    Raises:
        ValueError: another architecture, or the config disagrees with the tensors.
    """
    neutral = lookup.IGNORED | lookup.MEDUSA | {"model_type", "architectures"}
    check_head(entries, Tables(read=_READ, fixed=_FIXED, neutral=neutral))
    arch = entries.get("hydra_head_arch", MLP)
    has_prefix = f"{LAYER}.self_attn.q_proj.weight" in info
    if has_prefix != (arch == PREFIX_MLP):
        raise ValueError(
            f"hydra_head_arch={arch!r}, and {LAYER} is {'there' if has_prefix else 'not there'}; expected it with "
            f"{PREFIX_MLP!r} alone"
        )
    blocks = re.findall(r"^hydra_mlp\.(\d+)\.(\d+)\.linear\.weight$", "\n".join(info), re.MULTILINE)
    heads, layers = len({k for k, _ in blocks}), len({b for _, b in blocks})
    for name, value in (("hydra_num_heads", heads), ("hydra_num_layers", layers)):
        if values.integer(entries, name, value) != value:
            raise ValueError(f"{name}={entries[name]} in the config, but by the tensors it is {value}")
    if f"hydra_mlp.0.{int(has_prefix)}.res_connection.weight" not in info:
        raise ValueError(
            "the first blocks have no res_connection, so the heads do not read what was drafted; expected heads with "
            "grounded_heads=true"
        )
    output = f"hydra_lm_head.0{'.1' if has_prefix else ''}.weight"
    if output not in info or len(info[output].shape) != 2:
        raise ValueError(f"the weights lack a matrix {output}; expected the output matrix of head 0 there")
    vocab_size, hidden_size = info[output].shape
    return HydraConfig(
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        num_heads=heads,
        num_layers=layers,
        prefix=_layer(info, target or _placeholder_layer(info, hidden_size, vocab_size)) if has_prefix else None,
    )


def entries_for(config: HydraConfig, target_name: str | None) -> dict[str, Any]:
    """Returns the `config.json`; the authors' code loads the target that it names."""
    return {
        "hydra_num_heads": config.num_heads,
        "hydra_num_layers": config.num_layers,
        "hydra_head_arch": MLP if config.prefix is None else PREFIX_MLP,
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "base_model_name_or_path": target_name,
    }


def _layer(info: Mapping[str, TensorInfo], target: LlamaConfig) -> LlamaConfig:
    """Returns the config of the target's layer, with the sizes and parts that the tensors show."""
    return dataclasses.replace(
        target,
        num_hidden_layers=1,
        intermediate_size=_rows(info, "mlp.gate_proj"),
        attention_bias=f"{LAYER}.self_attn.o_proj.bias" in info,
        qkv_bias=f"{LAYER}.self_attn.q_proj.bias" in info and f"{LAYER}.self_attn.o_proj.bias" not in info,
        qk_norm=f"{LAYER}.self_attn.q_norm.weight" in info,
        mlp_bias=f"{LAYER}.mlp.gate_proj.bias" in info,
        tie_word_embeddings=False,
        sliding_window=None,
        full_attention_layers=(),
        experts=None,
    )


def _placeholder_layer(info: Mapping[str, TensorInfo], hidden_size: int, vocab_size: int) -> LlamaConfig:
    """Returns a layer with the tensors' sizes; the head size is invented, since no tensor shows it."""
    q, k = (_rows(info, f"self_attn.{x}_proj") for x in "qk")
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_rows(info, "mlp.gate_proj"),
        num_hidden_layers=1,
        num_attention_heads=max(1, q // k),
        num_key_value_heads=1,
        head_dim=k,
        max_position_embeddings=1,
        rms_norm_eps=1.0,
        rope=Rope(theta=1.0),
    )


def _rows(info: Mapping[str, TensorInfo], part: str) -> int:
    key = f"{LAYER}.{part}.weight"
    if key not in info or len(info[key].shape) != 2:
        raise ValueError(f"the weights lack a matrix {key}; expected one in the layer before the heads")
    return info[key].shape[0]
