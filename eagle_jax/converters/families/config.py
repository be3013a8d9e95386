"""Converts HuggingFace's `config.json` to a `LlamaConfig` and back.

Every key is read, checked, known to have no effect, or unknown to transformers (`hf.keys`).
"""

import dataclasses
import functools
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters.families import experts as hf_experts
from eagle_jax.converters.families import facts
from eagle_jax.converters.families.facts import layer_types
from eagle_jax.converters.families.family import FULL, WINDOWED, Family
from eagle_jax.converters.families.lookup import NULL_SAYS, SIZES, family_in, tables_of, text_part
from eagle_jax.converters.families.rows import FAMILIES
from eagle_jax.converters.hf import rope
from eagle_jax.converters.hf.keys import log, split_target
from eagle_jax.converters.hf.values import Refusals, flag, integer, number


def config_from_hf(entries: Mapping[str, Any], changes: Iterable[str] = ()) -> LlamaConfig:
    """Returns the target model that a `config.json` describes, as transformers reads it without remote code.

    Keys that transformers does not know for this `model_type` are ignored, with a line in the log, unless a caller gave
    them: `changes` names those.

    Raises:
        ValueError: another architecture, or all at once the keys that transformers knows and this package does not
            model, unless they have their defaults, and the missing or ill-typed values.
    """
    entries = text_part(entries)
    name = family_in(entries)
    family, keys = FAMILIES[name], split_target(entries, tables_of(name), name)
    present = {key: value for key, value in keys.modelled.items() if value is not None or key in NULL_SAYS}
    defaults = {
        key: value
        for key, value in family.defaults.items()
        if key != "rope_parameters" or not present.get("rope_scaling")
    }
    present = {**defaults, **present}
    unknown, refusals = list(keys.unknown), Refusals()
    refusals.of(keys.check)
    unknown += refusals.of(rope.unread_settings, present, family.rope) or ()
    if vain := [key for key in changes if key in unknown]:
        verb = "changes" if len(vain) == 1 else "change"
        raise ValueError(f"{', '.join(vain)} {verb} nothing, as transformers' {name} does not read it; leave it out")
    fields = _fields(present, name, refusals)
    refusals.check()
    if unknown:
        log.warning("ignored, as transformers' %s does not read them: %s", name, ", ".join(unknown))
    if entries.get("auto_map"):
        log.warning("auto_map names code that is not run; the model is transformers' own %s", family.architecture)
    return LlamaConfig(**{**fields, **family.implied_fields})


def _fields(entries: Mapping[str, Any], name: str, refusals: Refusals) -> dict[str, Any]:
    """Returns the fields of the `LlamaConfig` that these entries make; None for those that `refusals` collects."""
    read, sizes, family = refusals.of, (*SIZES, "max_position_embeddings"), FAMILIES[name]
    flags = ("attention_bias", "mlp_bias", "tie_word_embeddings")
    return {
        **{key: read(integer, entries, key) for key in sizes},
        **{key: read(flag, entries, key, False) for key in flags},
        **(read(_windows, entries, family) or {}),
        "experts": None if family.experts is None else read(family.experts, entries),
        "num_key_value_heads": read(_num_key_value_heads, entries),
        "head_dim": read(_head_dim, entries),
        "rms_norm_eps": read(number, entries, "rms_norm_eps"),
        "rope": read(_rope, rope.of_full_layers(entries), family),
        **(read(facts.fields_of, entries, family.keys) or {}),
        **(read(family.read, entries) or {}),
    }


def config_to_hf(config: LlamaConfig) -> dict[str, Any]:
    """Returns the `config.json` of a target; `config_from_hf` reads it back, and so does transformers.

    Raises:
        ValueError: no family's `config.json` can express the combination.
    """
    name = family_of(config)
    entries = _entries(config, name)
    if wrong := _differences(config, entries):
        raise ValueError(f"{wrong[0]}: a config.json of {name}, the nearest to this model, cannot say so")
    return entries


@functools.lru_cache(maxsize=64)
def family_of(config: LlamaConfig) -> str:
    """Returns a model's family: the first whose `config.json` can express all of it, else the nearest one."""
    distances = {}
    for name, family in FAMILIES.items():
        wrong = len(_differences(config, _entries(config, name)))
        if not wrong:
            return name
        num_matching = sum(getattr(config, key) == value for key, value in family.implied_fields.items())
        distances[name] = wrong, (family.experts is None) != (config.experts is None), -num_matching
    return min(distances, key=distances.__getitem__)


def _differences(config: LlamaConfig, entries: Mapping[str, Any]) -> list[str]:
    """Returns the fields in which a `config.json` describes another model, with their values in `config`."""
    try:
        read = config_from_hf(entries)
    except ValueError:  # the family has not even the values
        return [field.name for field in dataclasses.fields(config)]
    return [text for f in dataclasses.fields(config) for text in _different(f.name, config, read)]


def _different(name: str, first: Any, second: Any) -> list[str]:
    """Returns the field with its first value, if it differs; of nested configs, the first inner field that does."""
    value, other = getattr(first, name), getattr(second, name)
    if dataclasses.is_dataclass(value) and type(value) is type(other):
        inner = [text for f in dataclasses.fields(value) for text in _different(f.name, value, other)]
        return [f"{name}.{text}" for text in inner[:1]]
    return [] if value == other else [f"{name}={reprlib.repr(value)}"]


def _entries(config: LlamaConfig, name: str) -> dict[str, Any]:
    """Returns the `config.json` entries that describe the model in this family, as far as it can."""
    family = FAMILIES[name]
    entries: dict[str, Any] = {"architectures": [family.architecture], "model_type": name}
    entries |= {key: values[0] for key, values in family.fixed.items() if key in ("hidden_act", "hidden_activation")}
    entries |= {key: getattr(config, key) for key in (*SIZES, "num_key_value_heads", "head_dim")}
    entries |= {key: getattr(config, key) for key in ("max_position_embeddings", "rms_norm_eps")}
    entries |= rope.rope_to_hf(config.rope, config.max_position_embeddings)
    entries["tie_word_embeddings"] = config.tie_word_embeddings
    specific = _specific(config)
    entries |= {key: specific[key] for key in sorted(family.keys) if key in specific}
    return rope.in_one_spelling(entries | dict(family.write(config)), family.defaults)


def _specific(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries under keys that only some families have."""
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    experts = {} if config.experts is None else hf_experts.stated_by(config.experts)
    return (experts | facts.stated_by(config)) | {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "sliding_window": config.sliding_window,
        "use_sliding_window": config.sliding_window is not None,
        "max_window_layers": len(config.full_attention_layers),
        "layer_types": [FULL if window is None else WINDOWED for window in windows],
    }


def _windows(entries: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Returns the window and the layers without one. Qwen's configs state a window and mostly switch it off."""
    none = {"sliding_window": None, "full_attention_layers": ()}
    if "sliding_window" not in family.keys:
        return none
    if entries.get("sliding_window") is None or not flag(entries, "use_sliding_window", True):
        if WINDOWED in (layer_types(entries) or ()):
            raise ValueError(f"layer_types names {WINDOWED!r}, and no sliding_window is in use; expected one")
        return none
    layers = integer(entries, "num_hidden_layers")
    full = _full_layers(entries, family, layers)
    if len(full) == layers:
        return none
    return {"sliding_window": integer(entries, "sliding_window"), "full_attention_layers": full}


def _full_layers(entries: Mapping[str, Any], family: Family, layers: int) -> tuple[int, ...]:
    """Returns the layers without a window: from `layer_types` or a pattern, or else the first `max_window_layers`."""
    types = layer_types(entries)
    if types is None and "sliding_window_pattern" in entries:
        step = integer(entries, "sliding_window_pattern")
        return tuple(i for i in range(layers) if (i + 1) % max(step, 1) == 0)
    if types is None:
        lowest = integer(entries, "max_window_layers", 0) if "layer_types" in family.keys else 0
        return tuple(range(min(lowest, layers)))
    if len(types) != layers:
        raise ValueError(f"layer_types={types!r}; expected {FULL!r} or {WINDOWED!r} for each of {layers} layers")
    return tuple(i for i, kind in enumerate(types) if kind == FULL)


def _rope(entries: Mapping[str, Any], family: Family) -> Rope:
    head_dim = _head_dim(entries) if family.rope else None
    return rope.rope_from_hf(entries, integer(entries, "max_position_embeddings"), family.rope, head_dim)


def _num_key_value_heads(entries: Mapping[str, Any]) -> int:
    return integer(entries, "num_key_value_heads", integer(entries, "num_attention_heads"))


def _head_dim(entries: Mapping[str, Any]) -> int:
    """Returns `head_dim`, by default the hidden size over the number of heads."""
    if entries.get("head_dim") is not None:
        return integer(entries, "head_dim")
    hidden_size, heads = integer(entries, "hidden_size"), integer(entries, "num_attention_heads")
    if hidden_size % heads:
        raise ValueError(f"no head_dim, and num_attention_heads={heads} does not divide hidden_size={hidden_size}")
    return hidden_size // heads
