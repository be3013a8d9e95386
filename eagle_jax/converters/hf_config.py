"""HuggingFace's `config.json` to a `LlamaConfig` and back.

Every key is accounted for: read, checked, known to do nothing, or unknown to transformers (`hf_keys`).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from eagle_jax.config import Experts, Gemma, LlamaConfig, Rope
from eagle_jax.converters import hf_rope
from eagle_jax.converters.hf_families import (
    FAMILIES,
    FULL,
    NULL_SAYS,
    SIZES,
    WINDOWED,
    Family,
    family_in,
    family_of,
    tables_of,
)
from eagle_jax.converters.hf_keys import log, split_target
from eagle_jax.converters.hf_values import Refusals, flag, integer, number


def config_from_hf(entries: Mapping[str, Any], changes: Iterable[str] = ()) -> LlamaConfig:
    """The target model that a `config.json` describes, as transformers reads it without remote code.

    Keys that transformers does not know for this `model_type` are passed over, with a line in the log, unless a caller
    gave them: `changes` names those.

    Raises:
        ValueError: another architecture, or all at once the keys that transformers knows and this package does not
            model, unless they have their defaults, and the missing or ill-typed values.
    """
    name = family_in(entries)
    family, keys = FAMILIES[name], split_target(entries, tables_of(name), name)
    stated = {key: value for key, value in keys.modelled.items() if value is not None or key in NULL_SAYS}
    stated = {**family.absent, **stated}
    unknown, refusals = list(keys.unknown), Refusals()
    refusals.of(keys.check)
    unknown += refusals.of(hf_rope.unread_settings, stated) or ()
    if vain := [key for key in changes if key in unknown]:
        verb = "changes" if len(vain) == 1 else "change"
        raise ValueError(f"{', '.join(vain)} {verb} nothing, as transformers' {name} does not read it; leave it out")
    fields = _fields(stated, name, refusals)
    refusals.check()
    if unknown:
        log.warning("passed over, as transformers' %s does not read them: %s", name, ", ".join(unknown))
    if entries.get("auto_map"):
        log.warning("auto_map names code that is not run; the model is transformers' own %s", family.architecture)
    return LlamaConfig(**family.always, **fields)


def _fields(stated: Mapping[str, Any], name: str, refusals: Refusals) -> dict[str, Any]:
    """The fields of the `LlamaConfig` that these entries make; None for those that `refusals` collects."""
    read, sizes = refusals.of, (*SIZES, "max_position_embeddings")
    flags = ("attention_bias", "mlp_bias", "tie_word_embeddings")
    return {
        **{key: read(integer, stated, key) for key in sizes},
        **{key: read(flag, stated, key, False) for key in flags},
        **(read(_windows, stated, FAMILIES[name]) or {}),
        "experts": read(_experts, stated, name),
        "num_key_value_heads": read(_num_key_value_heads, stated),
        "head_dim": read(_head_dim, stated),
        "rms_norm_eps": read(number, stated, "rms_norm_eps"),
        "rope": read(_rope, hf_rope.of_full_layers(stated)),
        "gemma": read(_gemma, stated, name),
    }


def config_to_hf(config: LlamaConfig) -> dict[str, Any]:
    """The `config.json` of a target; `config_from_hf` reads it back, and so does transformers.

    Raises:
        ValueError: no family's `config.json` can express the combination.
    """
    name = family_of(config)
    family = FAMILIES[name]
    entries: dict[str, Any] = {"architectures": [family.architecture], "model_type": name}
    if config.gemma is None:
        entries["hidden_act"] = "silu"
    else:
        entries["hidden_activation"] = "gelu_pytorch_tanh"
    entries |= {key: getattr(config, key) for key in (*SIZES, "num_key_value_heads", "head_dim")}
    entries |= {key: getattr(config, key) for key in ("max_position_embeddings", "rms_norm_eps")}
    entries |= hf_rope.rope_to_hf(config.rope, config.max_position_embeddings)
    entries["tie_word_embeddings"] = config.tie_word_embeddings
    specific = _specific(config)
    entries |= {key: specific[key] for key in sorted(family.keys) if key in specific}

    read = config_from_hf(entries)
    for field in dataclasses.fields(config):
        if getattr(read, field.name) != getattr(config, field.name):
            raise ValueError(
                f"{field.name}={getattr(config, field.name)!r}: a {name} config.json, the nearest to this model, "
                f"cannot say so"
            )
    return entries


def _specific(config: LlamaConfig) -> dict[str, Any]:
    """What the config says in the keys that only some families have."""
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    experts: dict[str, Any] = {}
    if config.experts is not None:
        experts = dataclasses.asdict(config.experts)
        experts |= {"num_local_experts": config.experts.num_experts, "decoder_sparse_step": 1}
        experts["mlp_only_layers"] = list(config.experts.mlp_only_layers)
    gemma: dict[str, Any] = {}
    if config.gemma is not None:
        gemma = dataclasses.asdict(config.gemma)
        local = gemma.pop("local_rope")
        gemma |= {} if local is None else {"rope_local_base_freq": local["theta"]}
    return (experts | gemma) | {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "sliding_window": config.sliding_window,
        "use_sliding_window": config.sliding_window is not None,
        "max_window_layers": len(config.full_attention_layers),
        "layer_types": [FULL if window is None else WINDOWED for window in windows],
    }


def _windows(stated: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The window and the layers without one. Qwen's configs state a window and mostly switch it off."""
    none = {"sliding_window": None, "full_attention_layers": ()}
    if stated.get("sliding_window") is None or not flag(stated, "use_sliding_window", True):
        if WINDOWED in (layer_types(stated) or ()):
            raise ValueError(f"layer_types names {WINDOWED!r}, and no sliding_window is in use; expected one")
        return none
    layers = integer(stated, "num_hidden_layers")
    full = _full_layers(stated, family, layers)
    if len(full) == layers:
        return none
    return {"sliding_window": integer(stated, "sliding_window"), "full_attention_layers": full}


def _full_layers(stated: Mapping[str, Any], family: Family, layers: int) -> tuple[int, ...]:
    """The layers that see everything: named one by one, or else the lowest `max_window_layers`."""
    types = layer_types(stated)
    if types is None and "sliding_window_pattern" in stated:
        step = integer(stated, "sliding_window_pattern")
        return tuple(i for i in range(layers) if (i + 1) % max(step, 1) == 0)
    if types is None:
        lowest = integer(stated, "max_window_layers", 0) if "layer_types" in family.keys else 0
        return tuple(range(min(lowest, layers)))
    if len(types) != layers:
        raise ValueError(f"layer_types={types!r}; expected {FULL!r} or {WINDOWED!r} for each of {layers} layers")
    return tuple(i for i, kind in enumerate(types) if kind == FULL)


def _rope(stated: Mapping[str, Any]) -> Rope:
    return hf_rope.rope_from_hf(stated, integer(stated, "max_position_embeddings"))


def _local_rope(stated: Mapping[str, Any]) -> Rope:
    return hf_rope.rope_from_hf(hf_rope.of_local_layers(stated), integer(stated, "max_position_embeddings"))


def _gemma(stated: Mapping[str, Any], name: str) -> Gemma | None:
    if name not in ("gemma2", "gemma3_text"):
        return None
    caps = {key: stated.get(key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    return Gemma(
        query_pre_attn_scalar=integer(stated, "query_pre_attn_scalar"),
        **{key: None if cap is None else number(stated, key) for key, cap in caps.items()},
        local_rope=_local_rope(stated) if name == "gemma3_text" else None,
    )


def _experts(stated: Mapping[str, Any], name: str) -> Experts | None:
    """Mixtral's experts are as wide as its MLP would be and weigh 1 together; Qwen's config says both."""
    if name == "mixtral":
        return Experts(
            num_experts=_num_experts(stated, 8),
            num_experts_per_tok=integer(stated, "num_experts_per_tok"),
            moe_intermediate_size=integer(stated, "intermediate_size"),
            norm_topk_prob=True,
        )
    if name != "qwen3_moe":
        return None
    return Experts(
        num_experts=_num_experts(stated, 128),
        num_experts_per_tok=integer(stated, "num_experts_per_tok"),
        moe_intermediate_size=integer(stated, "moe_intermediate_size"),
        norm_topk_prob=flag(stated, "norm_topk_prob", False),
        mlp_only_layers=_dense_layers(stated, integer(stated, "num_hidden_layers")),
    )


def _num_experts(stated: Mapping[str, Any], default: int) -> int:
    """The number of experts, which has two names in transformers."""
    counts = [integer(stated, key) for key in ("num_experts", "num_local_experts") if key in stated] or [default]
    if len(set(counts)) > 1:
        raise ValueError(f"num_experts={counts[0]} and num_local_experts={counts[1]}; expected the two to agree")
    return counts[0]


def _dense_layers(stated: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers that are named, and those between every `decoder_sparse_step`-th one."""
    dense_layers, step = stated["mlp_only_layers"], integer(stated, "decoder_sparse_step")
    if step < 1 or not isinstance(dense_layers, list) or any(i not in range(layers) for i in dense_layers):
        raise ValueError(
            f"mlp_only_layers={dense_layers!r} and decoder_sparse_step={step}; "
            f"expected a list of layers from 0 to {layers - 1}, and at least 1"
        )
    return tuple(i for i in range(layers) if i in dense_layers or (i + 1) % step)


def _num_key_value_heads(stated: Mapping[str, Any]) -> int:
    return integer(stated, "num_key_value_heads", integer(stated, "num_attention_heads"))


def _head_dim(stated: Mapping[str, Any]) -> int:
    """Size of one attention head: as stated, or the hidden size shared out."""
    if stated.get("head_dim") is not None:
        return integer(stated, "head_dim")
    hidden_size, heads = integer(stated, "hidden_size"), integer(stated, "num_attention_heads")
    if hidden_size % heads:
        raise ValueError(f"no head_dim, and num_attention_heads={heads} does not divide hidden_size={hidden_size}")
    return hidden_size // heads


def layer_types(entries: Mapping[str, Any]) -> list[str] | None:
    """Which layers have a window, one by one; None where they are not named."""
    types = entries.get("layer_types")
    if types is not None and not (isinstance(types, list) and all(kind in (FULL, WINDOWED) for kind in types)):
        raise ValueError(f"layer_types={types!r}; expected a list of {FULL!r} and {WINDOWED!r}, one for each layer")
    return types
