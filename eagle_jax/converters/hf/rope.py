"""Reads and writes rotary settings of HuggingFace's `config.json`, in both spellings.

    transformers 4   "rope_theta": 1e4, "rope_scaling": {"type" or "rope_type": "linear", "factor": 2.0} or null
    transformers 5   "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

Defaults and precedence follow transformers 5 (`modeling_rope_utils.py`).
"""

import math
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.target import Rope
from eagle_jax.converters.hf.values import flag, is_number

KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings")

# Under these keys `rope_parameters` holds the settings of each kind of layer (Gemma 3).
_NESTED = frozenset({"full_attention", "sliding_attention"})

# Llama's default base angle.
DEFAULT_THETA = 10000.0

_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}

# Features of some families: rotation of part of each head, the kind longrope, a constant `alpha` in "dynamic" scaling,
# query factors by position, interleaved pairs without a key, sections for positions in images (equal in text),
# interleaved pairs by the key `rope_interleave`, and the kind proportional.
EXTRAS = ("partial", "longrope", "alpha", "query_beta", "interleaved", "sections", "rope_interleave", "proportional")
_QUERY_BETA = "llama_4_scaling_beta"
# Settings that transformers reads for each kind; others have no effect.
_SETTINGS: Mapping[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "finetuned",  # describes the training, without effect on the model
    },
    "longrope": {"short_factor", "long_factor", "factor", "original_max_position_embeddings", "attention_factor"},
    "proportional": {"factor"},
}
_EXTRA_KINDS = ("longrope", "proportional")  # supported only for families with this extra


def rope_from_hf(
    entries: Mapping[str, Any],
    max_position_embeddings: int,
    extras: frozenset[str] = frozenset(),
    head_dim: int | None = None,
) -> Rope:
    """Returns the rotary embedding that a `config.json` describes.

    Args:
        extras: features of the family, from `EXTRAS`.
        head_dim: size of a head; used if `extras` has `partial`.

    Raises:
        ValueError: an unknown kind, a missing or ill-typed value, or two spellings that disagree.
    """
    old, new = entries.get("rope_scaling") or {}, entries.get("rope_parameters") or {}
    for name, settings in (("rope_scaling", old), ("rope_parameters", new)):
        if not isinstance(settings, Mapping):
            raise ValueError(f"{name} is {settings!r}; expected an object of rotary settings, or null")
    ropes = [_read(part, entries, max_position_embeddings, extras, head_dim) for part in (old, new) if part]
    if len(ropes) == 2 and ropes[0] != ropes[1]:
        raise ValueError(f"rope_scaling {dict(old)} and rope_parameters {dict(new)} disagree; keep the right one")
    return ropes[0] if ropes else _read({}, entries, max_position_embeddings, extras, head_dim)


def unread_settings(entries: Mapping[str, Any], extras: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Returns the rotary settings without effect for their kind, by full names (`rope_scaling.attn_factor`)."""
    groups = {key: entries.get(key) for key in ("rope_scaling", "rope_parameters")}
    settings_of = {"alpha": {"alpha"}, "query_beta": {_QUERY_BETA, "original_max_position_embeddings"}}
    settings_of |= {"sections": {"mrope_section", "mrope_interleaved"}}
    extra_settings = set().union(*(names for extra, names in settings_of.items() if extra in extras))
    for name in _NESTED:
        if isinstance(groups["rope_parameters"], Mapping):
            groups[f"rope_parameters.{name}"] = groups["rope_parameters"].get(name)
    unread: dict[str, Any] = {}
    for group, settings in groups.items():
        if isinstance(settings, Mapping) and not settings.keys() & _NESTED:
            used = extra_settings | _COMMON | _SETTINGS.get(_kind(settings, extras), set(settings))
            unread |= {f"{group}.{name}": value for name, value in settings.items() if name not in used}
    return unread


def of_full_layers(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the entries with only the rotary settings of full-attention layers, if there are two kinds (Gemma 3)."""
    settings = entries.get("rope_parameters")
    if not isinstance(settings, Mapping) or "full_attention" not in settings:
        return entries
    return {**entries, "rope_parameters": settings["full_attention"]}


def of_local_layers(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the rotary settings of layers with a window, from `rope_local_base_freq` or `rope_parameters`."""
    settings = entries.get("rope_parameters")
    local = settings.get("sliding_attention") if isinstance(settings, Mapping) else None
    return {"rope_theta": entries.get("rope_local_base_freq"), "rope_parameters": local}


def in_one_spelling(entries: Mapping[str, Any], absent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries with one of `rope_scaling` and `rope_parameters`: transformers 5 reads only one.

    Args:
        absent: the family's defaults of missing keys; a default scaling is overridden for a model without scaling.
    """
    settings, old = entries.get("rope_parameters"), ("rope_theta", "rope_scaling", "partial_rotary_factor")
    if settings is None and "rope_parameters" in absent and entries["rope_scaling"] is None:
        base = {key: entries[key] for key in ("rope_theta", "partial_rotary_factor") if key in entries}
        settings = {"rope_type": "default", **base}
    if settings is None:
        return dict(entries)
    return {key: value for key, value in entries.items() if key not in old} | {"rope_parameters": settings}


def rope_to_hf(rope: Rope, max_position_embeddings: int) -> dict[str, Any]:
    """Returns `rope_theta` and `rope_scaling` for a `config.json`: every version of transformers reads this spelling.

    Raises:
        ValueError: dynamic scaling from another length than `max_position_embeddings`; transformers has no such.
    """
    if rope.kind == "dynamic":
        _dynamic_context(vars(rope), max_position_embeddings)
    entries: dict[str, Any] = {"rope_theta": rope.theta, "rope_scaling": None}
    if rope.partial_rotary_factor != 1:
        entries["partial_rotary_factor"] = rope.partial_rotary_factor
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "ntk":
        scaling = {"rope_type": "dynamic", "factor": 1.0, "alpha": rope.factor}
    if rope.kind == "longrope":
        factors = {"short_factor": list(rope.short_factor), "long_factor": list(rope.long_factor)}
        scaling = {"rope_type": rope.kind, **factors, "attention_factor": rope.attention_factor}
        entries["original_max_position_embeddings"] = rope.original_max_position_embeddings
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        names = ("beta_fast", "beta_slow", "truncate", "attention_factor")
        scaling |= {name: getattr(rope, name) for name in names}
    if rope.query_beta:
        scaling |= {_QUERY_BETA: rope.query_beta}
        scaling |= {"original_max_position_embeddings": rope.original_max_position_embeddings}
    return entries if rope.kind == "default" and not rope.query_beta else entries | {"rope_scaling": scaling}


def _read(
    settings: Mapping[str, Any],
    entries: Mapping[str, Any],
    max_position_embeddings: int,
    extras: frozenset[str],
    head_dim: int | None,
) -> Rope:
    kind = _kind(settings, extras)
    if kind not in _SETTINGS or (kind in _EXTRA_KINDS and kind not in extras):
        names = ", ".join(name for name in _SETTINGS if name not in _EXTRA_KINDS or name in extras)
        raise ValueError(f"rope scaling of kind {kind!r} is not known; expected one of {names}")
    theta = settings.get("rope_theta", entries.get("rope_theta"))
    rope: dict[str, Any] = {"theta": DEFAULT_THETA if theta is None else _number("rope_theta", theta), "kind": kind}
    rope |= _partial(settings, entries, "partial" in extras or kind == "proportional", head_dim)
    interleaves = "rope_interleave" in extras and flag(entries, "rope_interleave", True)
    rope |= {"interleaved": True} if "interleaved" in extras or interleaves else {}
    if kind in ("llama3", "yarn", "longrope") or "query_beta" in extras:
        # A context at the top level wins over one among the settings.
        inner_context = settings.get("original_max_position_embeddings")
        context = entries.get("original_max_position_embeddings") or inner_context or max_position_embeddings
        rope["original_max_position_embeddings"] = int(_number("original_max_position_embeddings", context))
    if "query_beta" in extras:
        rope["query_beta"] = _number(_QUERY_BETA, settings.get(_QUERY_BETA))
    if kind == "dynamic" and "alpha" in extras and settings.get("alpha"):
        return Rope(**rope | {"kind": "ntk", "factor": _number("alpha", settings["alpha"])})
    if kind == "dynamic":
        rope["original_max_position_embeddings"] = _dynamic_context(settings, max_position_embeddings)
    if kind in ("linear", "dynamic", "llama3"):
        rope["factor"] = _number("factor", settings.get("factor"))
    if kind == "proportional":
        rope["factor"] = _number("factor", settings.get("factor", 1.0))
    if kind == "llama3":
        rope |= {name: _number(name, settings.get(name)) for name in ("low_freq_factor", "high_freq_factor")}
    if kind == "yarn":
        rope |= _yarn(settings, max_position_embeddings / rope["original_max_position_embeddings"])
    if kind == "longrope":
        rope |= _longrope(settings, max_position_embeddings, rope["original_max_position_embeddings"])
    return Rope(**rope)


def _partial(
    settings: Mapping[str, Any], entries: Mapping[str, Any], is_read: bool, head_dim: int | None
) -> dict[str, float]:
    """Returns the rotated fraction of each head; MiniMax states the number of rotated dimensions instead."""
    partial = settings.get("partial_rotary_factor", entries.get("partial_rotary_factor"))
    if partial is None and is_read and entries.get("rotary_dim") is not None and head_dim:
        partial = _number("rotary_dim", entries["rotary_dim"]) / head_dim
    if partial in (None, 1, 1.0):
        return {}
    if not is_read:
        raise ValueError(f"partial_rotary_factor={partial!r}; expected 1: heads are rotated whole")
    return {"partial_rotary_factor": _number("partial_rotary_factor", partial)}


def _longrope(settings: Mapping[str, Any], max_position_embeddings: int, original: int) -> dict[str, Any]:
    """Returns the divisors of the frequencies, and the factor of cos and sin: stated, or computed from the stretch."""
    divisors = {}
    for name in ("short_factor", "long_factor"):
        values = settings.get(name)
        if not isinstance(values, list) or not all(is_number(value) for value in values):
            raise ValueError(f"{name}={values!r} in the rope settings; expected a list of numbers")
        divisors[name] = tuple(map(float, values))
    scale, stretch = settings.get("attention_factor"), settings.get("factor")
    stretch = max_position_embeddings / original if stretch is None else _number("factor", stretch)
    scale = longrope_scale(stretch, original) if scale is None else _number("attention_factor", scale)
    return divisors | {"attention_factor": scale}


def longrope_scale(stretch: float, original: int) -> float:
    """Returns the factor of cos and sin for a stretched context (Ding et al. 2024)."""
    return 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))


def _kind(settings: Mapping[str, Any], extras: frozenset[str] = frozenset()) -> str:
    kind, other = settings.get("rope_type", settings.get("type", "default")), settings.get("type")
    if other not in (None, kind):
        raise ValueError(f"rotary settings have rope_type={kind!r} and type={other!r}; keep the right one")
    if not isinstance(kind, str):
        raise ValueError(f"rope scaling of kind {kind!r} is not known; expected one of {', '.join(_SETTINGS)}")
    return "longrope" if "longrope" in extras and kind in ("su", "yarn") else kind  # Phi-3's first names of longrope


def _dynamic_context(settings: Mapping[str, Any], max_position_embeddings: int) -> int:
    """Returns the context before stretching, in transformers always `max_position_embeddings`."""
    stated = settings.get("original_max_position_embeddings")
    if stated not in (None, max_position_embeddings):
        raise ValueError(
            f"dynamic rope scaling with original_max_position_embeddings={stated!r} with "
            f"max_position_embeddings={max_position_embeddings}; expected the two to agree"
        )
    return max_position_embeddings


def _yarn(settings: Mapping[str, Any], implied_factor: float) -> dict[str, Any]:
    factor = settings.get("factor")
    factor = implied_factor if factor is None else _number("factor", factor)
    truncate = settings.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ValueError(f"truncate={truncate!r} in the rope settings; expected true or false")
    return {
        "factor": factor,
        "beta_fast": _number("beta_fast", settings.get("beta_fast") or 32.0),
        "beta_slow": _number("beta_slow", settings.get("beta_slow") or 1.0),
        "truncate": truncate,
        "attention_factor": _yarn_attention_factor(settings, factor),
    }


def _yarn_attention_factor(settings: Mapping[str, Any], factor: float) -> float:
    """Returns the stated factor, or `0.1 m ln(factor) + 1` (Peng et al. 2023, equation 22; DeepSeek divides two)."""
    attention_factor = settings.get("attention_factor")
    if attention_factor is not None:
        return _number("attention_factor", attention_factor)

    def scale(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    numerator, denominator = settings.get("mscale"), settings.get("mscale_all_dim")
    if numerator and denominator:
        return scale(_number("mscale", numerator)) / scale(_number("mscale_all_dim", denominator))
    return scale(1.0)


def _number(name: str, value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"{name}={value!r} in the rope settings; expected a number")
    return float(value)
