"""Converts keys of a `config.json` that are not fields of `LlamaConfig`, in both directions."""

from collections.abc import Callable, Mapping
from typing import Any

from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters.families.family import FULL, WINDOWED, Entries
from eagle_jax.converters.hf import rope
from eagle_jax.converters.hf.values import flag, integer, number

Fields = Mapping[str, Any]


def fields_of(entries: Entries, keys: frozenset[str]) -> dict[str, Any]:
    """Returns the fields for the keys that mean the same in every family."""
    fields: dict[str, Any] = {}
    for key in sorted(keys & _READERS.keys()):
        fields |= _READERS[key](entries)
    return fields


def stated_by(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries for these keys; a writer picks the keys of its family."""
    scale = config.attention_scale
    local = {} if config.local_rope is None else {"rope_local_base_freq": config.local_rope.theta}
    return local | {
        "query_pre_attn_scalar": round(scale**-2),
        "attention_multiplier": scale,
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "logits_scaling": config.logits_scaling,
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
        "no_rope_layers": [int(i not in config.no_rope_layers) for i in range(config.num_hidden_layers)],
    }


def layer_types(entries: Entries) -> list[str] | None:
    """Returns the kind of each layer, with or without a window; None if the config has no `layer_types`."""
    types = entries.get("layer_types")
    if types is not None and not (isinstance(types, list) and all(kind in (FULL, WINDOWED) for kind in types)):
        raise ValueError(f"layer_types={types!r}; expected a list of {FULL!r} and {WINDOWED!r}, one for each layer")
    return types


def gemma(entries: Entries) -> Fields:
    """Reads Gemma's facts: embeddings are multiplied by the root of their size."""
    return {"embedding_multiplier": integer(entries, "hidden_size") ** 0.5}


def smollm3(entries: Entries) -> Fields:
    """Reads SmolLM3's facts: if windows are used and not named by layer, layers without rotation have them."""
    if layer_types(entries) is not None or not flag(entries, "use_sliding_window", False):
        return {}
    rotated = set(range(integer(entries, "num_hidden_layers"))) - set(no_rope_layers(entries))
    return {"full_attention_layers": tuple(sorted(rotated))} if entries.get("sliding_window") is not None else {}


def olmo3(entries: Entries) -> Fields:
    """Reads OLMo 3's facts: layers with a window have the same rotary embedding without its stretching."""
    full, local = _rope(rope.of_full_layers(entries), entries), _local_rope(entries)
    return {"local_rope": None if full == local else local}


def exaone4(entries: Entries) -> Fields:
    """Reads EXAONE 4's facts. In a model with a window, layers without one rotate nothing."""
    if entries.get("sliding_window") is None:
        return {}
    types, layers = layer_types(entries), integer(entries, "num_hidden_layers")
    if types is None:
        step = integer(entries, "sliding_window_pattern")
        types = [WINDOWED if (i + 1) % max(step, 1) else FULL for i in range(layers)]
    return {"no_rope_layers": tuple(i for i, kind in enumerate(types) if kind == FULL)}


def seed_oss(entries: Entries) -> Fields:
    """Reads Seed-OSS's facts: biases on q, k and v, and on o, are two keys."""
    inner, outer = flag(entries, "attention_bias", True), flag(entries, "attention_out_bias", False)
    if outer and not inner:
        raise ValueError("attention_out_bias=True with attention_bias=False; expected the second to be true, too")
    return {"attention_bias": outer, "qkv_bias": inner and not outer}


def seed_oss_keys(config: LlamaConfig) -> Fields:
    """Returns the entries that `seed_oss` reads."""
    inner = config.attention_bias or config.qkv_bias
    return {"attention_bias": inner, "attention_out_bias": config.attention_bias}


def ernie(entries: Entries) -> Fields:
    """Reads the facts of ERNIE, which has one key for the biases of all projections."""
    return dict.fromkeys(("attention_bias", "mlp_bias"), flag(entries, "use_bias", False))


def glm4_moe(entries: Entries) -> Fields:
    """Reads the facts of GLM-4 MoE, whose output projection never has a bias."""
    biases = {"attention_bias": False, "qkv_bias": flag(entries, "attention_bias", False)}
    return biases | {"qk_norm": flag(entries, "use_qk_norm", False)}


def _rope(settings: Entries, entries: Entries) -> Rope:
    return rope.rope_from_hf(settings, integer(entries, "max_position_embeddings"))


def _local_rope(entries: Entries) -> Rope:
    return _rope(rope.of_local_layers(entries), entries)


def no_rope_layers(entries: Entries) -> tuple[int, ...]:
    """Returns the layers without rotation."""
    layers, listed = integer(entries, "num_hidden_layers"), entries.get("no_rope_layers")
    if not listed:  # none, or an empty list (Llama 4)
        step = integer(entries, "no_rope_layer_interval")
        if step < 1:
            raise ValueError(f"no_rope_layer_interval={step}; expected at least 1")
        listed = [int((i + 1) % step != 0) for i in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or any(flag not in (0, 1) for flag in listed):
        raise ValueError(f"no_rope_layers={listed!r}; expected 1, or 0 for no rotation, for each of {layers} layers")
    return tuple(i for i in range(layers) if not listed[i])


def _number(key: str) -> Callable[[Entries], Fields]:
    return lambda entries: {key: number(entries, key)}


def _cap(key: str) -> Callable[[Entries], Fields]:
    return lambda entries: {key: None if entries.get(key) is None else number(entries, key)}


_READERS: Mapping[str, Callable[[Entries], Fields]] = {
    "query_pre_attn_scalar": lambda entries: {
        "attention_multiplier": _positive(entries, "query_pre_attn_scalar") ** -0.5
    },
    "attention_multiplier": _number("attention_multiplier"),
    "embedding_multiplier": _number("embedding_multiplier"),
    "residual_multiplier": _number("residual_multiplier"),
    "logits_scaling": _number("logits_scaling"),
    "attn_logit_softcapping": _cap("attn_logit_softcapping"),
    "final_logit_softcapping": _cap("final_logit_softcapping"),
    "rope_local_base_freq": lambda entries: {"local_rope": _local_rope(entries)},
    "no_rope_layers": lambda entries: {"no_rope_layers": no_rope_layers(entries)},
}


def _positive(entries: Entries, key: str) -> int:
    value = integer(entries, key)
    if value <= 0:
        raise ValueError(f"{key}={value}; expected a positive number")
    return value
