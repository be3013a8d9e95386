"""Applies a caller's changes to the entries of a `config.json`.

Files state some settings under several names, inside an object, or both. A change replaces all of these: otherwise the
other spelling in the file could win silently.
"""

from collections.abc import Mapping
from typing import Any

# Groups of names for the same setting.
_ALIASES = (
    ("num_experts", "num_local_experts"),
    ("hidden_act", "hidden_activation"),
    ("sliding_window_pattern", "_sliding_window_pattern"),
    ("fc_norm", "use_aux_norm"),
    ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"),
)
# Groups of settings that state the same with different values: a change of one drops the others from the file.
_TAPS = ("eagle_aux_hidden_state_layer_ids", "target_layer_ids", "aux_hidden_state_layer_ids")  # one less in objects
_ALTERNATIVES = (
    _TAPS,
    ("layer_types", "sliding_window_pattern", "_sliding_window_pattern", "max_window_layers"),
)
# Objects with entries that other files have at the top level.
_OBJECTS = ("dflash_config", "eagle_config", "transformer_layer_config")
# Rotary settings that may be inside `rope_scaling` and `rope_parameters`, or at the same level.
_ROTARY = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_FULL, _LOCAL = "full_attention", "sliding_attention"


def with_changes(entries: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a `config.json` with the changes, which replace every spelling in the file.

    Raises:
        ValueError: the changes state one rotary setting twice, with different values.
    """
    objects = {name: entries[name] for name in _OBJECTS if isinstance(entries.get(name), Mapping)}
    objects = {name: inner for name, inner in objects.items() if name not in changes}
    merged, merged_objects = dict(entries), {name: dict(inner) for name, inner in objects.items()}
    for name, value in changes.items():
        spellings = next((group for group in _ALIASES if name in group), (name,))
        for group in (group for group in _ALTERNATIVES if name in group):
            for other in set(group).difference(spellings, changes):
                for level in (merged, *merged_objects.values()):
                    level.pop(other, None)
        if name in _TAPS:
            for inner in merged_objects.values():
                inner.pop(name, None)
        is_replaced = False
        for level in (merged, *merged_objects.values()):
            for spelling in spellings:
                if spelling in level and spelling not in changes.keys() - {name}:
                    level[spelling], is_replaced = value, True
        if not is_replaced:
            merged[name.removeprefix("_")] = value
    for name, inner in merged_objects.items():
        rotary = {key: value for key, value in changes.items() if key not in entries and _has_rotary(inner, key)}
        merged[name] = _with_rotary(objects[name], inner, rotary)
        changes = {key: value for key, value in changes.items() if key not in rotary}
        for key in rotary:
            merged.pop(key, None)
    return _with_rotary(entries, merged, changes)


def _has_rotary(inner: Mapping[str, Any], name: str) -> bool:
    """Returns whether `name` is a rotary setting and this object holds rotary settings."""
    return name in (*_ROTARY, "rope_scaling", "rope_parameters") and bool(
        {"rope_theta", "rope_scaling", "rope_parameters"} & inner.keys()
    )


def _with_rotary(entries: Mapping[str, Any], merged: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `merged` with the rotary changes in both of transformers' spellings."""
    new, old = changes.get("rope_parameters"), entries.get("rope_parameters")
    if isinstance(new, Mapping):
        for name in {*_ROTARY} & new.keys() & changes.keys():
            if new[name] != changes[name]:
                raise ValueError(f"{name} is {changes[name]!r} and {new[name]!r} in rope_parameters; give one of them")
        sources = changes, _settings(old), entries, _settings(entries.get("rope_scaling"))
        theta = next((source["rope_theta"] for source in sources if "rope_theta" in source), None)
        if _FULL not in new and theta is not None:
            new = {"rope_theta": theta, **new}
        if "rope_scaling" not in changes:
            merged.pop("rope_scaling", None)
        return merged | {"rope_parameters": new}
    theta = _settings(entries.get("rope_scaling")).get("rope_theta")
    if "rope_scaling" in changes and theta is not None:
        merged.setdefault("rope_theta", theta)
    scaling = changes.get("rope_scaling", entries.get("rope_scaling"))
    if isinstance(scaling, Mapping):
        merged["rope_scaling"] = scaling = _replaced(scaling, changes)
    if not isinstance(old, Mapping) or not old or "rope_parameters" in changes:
        return merged
    settings = _settings(old)
    if "rope_scaling" in changes and isinstance(scaling, Mapping | None):
        rope_settings: dict[str, Any] = {
            name: settings[name] for name in ("rope_theta", "partial_rotary_factor") if name in settings
        }
        settings = {**rope_settings, **(scaling or {})}
        merged.pop("rope_scaling", None)
    settings = _replaced({"rope_theta": None, **settings} if "rope_theta" in changes else settings, changes)
    if _FULL not in old:
        return merged | {"rope_parameters": settings}
    local = dict(old.get(_LOCAL) or {})
    if "rope_local_base_freq" in changes:
        local["rope_theta"] = changes["rope_local_base_freq"]
    return merged | {"rope_parameters": {**old, _FULL: settings, _LOCAL: local}}


def _settings(rope_parameters: Any) -> dict[str, Any]:
    """Returns the rotary settings of full-attention layers, from `rope_parameters` for one kind of layer or two."""
    settings = rope_parameters.get(_FULL, rope_parameters) if isinstance(rope_parameters, Mapping) else {}
    return dict(settings) if isinstance(settings, Mapping) else {}


def _replaced(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with changed values of the rotary entries that they have."""
    return {name: changes.get(name, value) if name in _ROTARY else value for name, value in settings.items()}
