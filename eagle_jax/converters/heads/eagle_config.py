"""Builds the configuration of a draft head from its tensors and its `config.json`.

The tensors decide every size, bias and norm. Published EAGLE-1 configs state some of them wrongly, so these values are
ignored; EAGLE-3 configs have to agree with the tensors.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.heads import Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters.families import facts as hf_facts
from eagle_jax.converters.families import latent_attention, lookup
from eagle_jax.converters.heads.eagle_formats import D2T, EMBEDDING, FLAGS, OUTPUT, T2D, Spelling
from eagle_jax.converters.heads.entries import NUM_TAPS, HeadEntries, has_latent_attention
from eagle_jax.converters.heads.mask_entries import mask_config
from eagle_jax.converters.hf import rope as hf_rope
from eagle_jax.converters.hf import values
from eagle_jax.converters.tensor_file import TensorInfo

# Defaults of the EAGLE authors' code, for configs that lack the value.
DEFAULT_EPS = 1e-6
DEFAULT_CONTEXT = 2048

Info = Mapping[str, TensorInfo]


def eagle1_config(info: Info, entries: HeadEntries, spelling: Spelling) -> EagleConfig:
    """Returns the configuration of an EAGLE-1/2 head. Raises ValueError if tensors and config do not describe one."""
    fc = f"{spelling.fc}.weight"
    hidden, columns = _matrix(info, fc)
    if columns != 2 * hidden:
        raise ValueError(
            f"tensor {fc} has shape {[hidden, columns]}; expected {[hidden, 2 * hidden]}: from an embedding "
            "and a feature to a feature"
        )
    stored = info[EMBEDDING].shape if EMBEDDING in info else ()
    vocab_size = stored[0] if stored else values.integer(entries.layer, "vocab_size")
    layers = _layers(info, entries.layer, spelling, hidden, vocab_size)
    drafted = _matrix(info, OUTPUT)[0] if D2T in info else None
    _check_equal(entries.draft_vocab_size, drafted, "draft_vocab_size", OUTPUT)
    return EagleConfig(layers=layers, fc_bias=f"{spelling.fc}.bias" in info, draft_vocab_size=drafted)


def eagle3_config(info: Info, entries: HeadEntries, spelling: Spelling, taps: tuple[int, ...]) -> Eagle3Config:
    """Returns the configuration of an EAGLE-3 head. Raises ValueError if tensors and config do not describe one."""
    hidden, columns = _matrix(info, "fc.weight")
    _check_equal(entries.layer.get("hidden_size"), hidden, "hidden_size", "fc.weight")
    if entries.num_taps not in (None, len(taps)):
        raise ValueError(f"{NUM_TAPS}={entries.num_taps}, and the head reads {len(taps)} target layers, {list(taps)}")
    width = columns // len(taps)
    if columns % len(taps) or (EMBEDDING not in info and width != hidden):
        raise ValueError(
            f"fc.weight has {columns} columns for the target layers {list(taps)} that the head reads; expected "
            f"{len(taps)} times {hidden}, the width of a head without an embedding of its own"
        )
    _check_equal(entries.target_hidden_size, width, "target_hidden_size", "fc.weight")

    vocab_size = _vocab_size(info, entries.layer)
    layers = _layers(info, entries.layer, spelling, hidden, vocab_size)
    sized_by = {"intermediate_size": "mlp.gate_proj.weight", "num_hidden_layers": "*"}
    if layers.latent is None:
        sized_by |= {"num_attention_heads": "self_attn.q_proj.weight", "num_key_value_heads": "self_attn.k_proj.weight"}
    for name, part in sized_by.items():
        key = f"{spelling.first_layer}.{part}"
        _check_equal(entries.layer.get(name), getattr(layers, name), name, key)
    if OUTPUT in info:
        drafted, _ = _matrix(info, OUTPUT)
        _check_equal(entries.draft_vocab_size, drafted, "draft_vocab_size", OUTPUT)
    elif width == hidden and entries.draft_vocab_size in (None, vocab_size):
        drafted = vocab_size  # the target's output matrix serves the head too
    else:
        raise ValueError(
            f"no {OUTPUT}; expected one, since the target's output matrix serves only heads of its width that draft "
            "its whole vocabulary"
        )

    has_weights = {"norm_before_fc": "input_norm.weight" in info, "fc_norm": "fc_norm.0.weight" in info}
    for name, value in has_weights.items():
        if entries.flags.get(name, value) != value:
            raise ValueError(f"{name}={entries.flags[name]} in the config, and its weights are {_presence(value)}")
    flags: dict[str, Any] = {name: entries.flags.get(name, has_weights.get(name, False)) for name in FLAGS}
    return Eagle3Config(
        layers=layers,
        taps=taps,
        target_hidden_size=width,
        draft_vocab_size=drafted,
        own_embedding=EMBEDDING in info,
        mask=mask_config(info, entries.mask),
        **flags,
    )


def _layers(info: Info, entries: Mapping[str, Any], spelling: Spelling, hidden: int, vocab_size: int) -> LlamaConfig:
    def name(part: str) -> str:
        return f"{spelling.first_layer}.{part}"

    context = values.integer(entries, "max_position_embeddings", DEFAULT_CONTEXT)
    numbers = [int(i) for i in re.findall(r"^layers\.(\d+)\.", "\n".join(info), re.MULTILINE)]
    has_o_bias = name("self_attn.o_proj.bias") in info
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=_matrix(info, name("mlp.gate_proj.weight"))[0],
        num_hidden_layers=1 + max(numbers, default=0) if spelling.first_layer.endswith(".0") else 1,
        max_position_embeddings=context,
        rms_norm_eps=values.number(entries, "rms_norm_eps", DEFAULT_EPS),
        attention_bias=has_o_bias,
        qkv_bias=name("self_attn.q_proj.bias") in info and not has_o_bias,
        qk_norm=name("self_attn.q_norm.weight") in info,
        mlp_bias=name("mlp.gate_proj.bias") in info,
        sliding_window=_window(entries),
        **(_latent(entries, context) if has_latent_attention(entries) else _by_head(info, entries, spelling, context)),
    )


def _latent(entries: Mapping[str, Any], context: int) -> dict[str, Any]:
    """Returns the fields of latent attention; their sizes are checked later against the shapes of the tensors."""
    facts = dict(latent_attention.read(entries))
    latent = dataclasses.replace(facts["latent"], eps=values.number(entries, "rms_norm_eps", DEFAULT_EPS))
    rope = hf_rope.rope_from_hf(entries, context, frozenset({"rope_interleave"}))
    return {**facts, "latent": latent, "rope": rope, "num_attention_heads": facts["num_key_value_heads"]}


def _by_head(info: Info, entries: Mapping[str, Any], spelling: Spelling, context: int) -> dict[str, Any]:
    """Returns the fields of ordinary attention: number and size of heads, and the rotary embedding."""
    q, k = (_matrix(info, f"{spelling.first_layer}.self_attn.{x}_proj.weight")[0] for x in "qk")
    size = _head_dim(entries, q, k)
    heads = {"num_attention_heads": q // size, "num_key_value_heads": k // size, "head_dim": size}
    return {**heads, "rope": hf_rope.rope_from_hf(entries, context)}


def _head_dim(entries: Mapping[str, Any], q: int, k: int) -> int:
    """Returns `head_dim`, or else the rows of `q_proj` divided by the number of heads.

    The hidden size does not determine it: Qwen3's heads are wider.
    """
    heads = values.integer(entries, "num_attention_heads")
    if heads < 1:
        raise ValueError(f"num_attention_heads={heads}; expected at least 1")
    head_dim = entries.get("head_dim")
    if head_dim is None and q % heads:
        raise ValueError(f"q_proj with {q} rows is no whole number of rows for each of num_attention_heads={heads}")
    size = q // heads if head_dim is None else values.integer(entries, "head_dim")
    if size < 1 or q % size or k % size:
        raise ValueError(f"q_proj and k_proj with {q} and {k} rows are no whole number of heads of head_dim={size}")
    return size


def _vocab_size(info: Info, entries: Mapping[str, Any]) -> int:
    """Returns the target's vocabulary size from the draft token mask, else the embedding, else the config."""
    for key in (T2D, EMBEDDING):
        if key in info and info[key].shape:
            _check_equal(entries.get("vocab_size"), info[key].shape[0], "vocab_size", key)
            return info[key].shape[0]
    return values.integer(entries, "vocab_size")


def _window(entries: Mapping[str, Any]) -> int | None:
    """Returns the size of the sliding window; None also where a config has a size but disables it, as Qwen's do."""
    kinds = hf_facts.layer_types(entries) or []
    if len(set(kinds)) > 1:
        raise ValueError(f"layer_types={kinds!r} is not supported in a head; expected layers of one type")
    is_windowed = None if not kinds else kinds[0] == lookup.WINDOWED
    is_windowed = values.flag(entries, "use_sliding_window", True) if is_windowed is None else is_windowed
    if entries.get("sliding_window") is None or not is_windowed:
        return None
    return values.integer(entries, "sliding_window")


def _matrix(info: Info, key: str) -> tuple[int, int]:
    if key not in info or len(info[key].shape) != 2:
        raise ValueError(f"the weights lack a matrix {key}; expected one in every head of this kind")
    rows, columns = info[key].shape
    return rows, columns


def _check_equal(entry: Any, value: int | None, name: str, tensor: str) -> None:
    if entry is not None and entry != value:
        implied = "none" if value is None else value
        raise ValueError(
            f"{name}={entry!r} in the config, but tensor {tensor} implies {implied}; expected equal values"
        )


def _presence(value: bool) -> str:
    return "there" if value else "not there"
