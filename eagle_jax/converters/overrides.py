"""Entries that take the place of those in a `config.json`.

Files state some settings under another name, inside an object, or both ways at once. What a caller asks for wins over
every one of them: an entry that only took the place of its own name would lose to the other spelling, silently.
"""

from collections.abc import Mapping
from typing import Any

# Names of one setting.
_SAME = (
    ("num_experts", "num_local_experts"),
    ("hidden_act", "hidden_activation"),
    ("sliding_window_pattern", "_sliding_window_pattern"),
    ("fc_norm", "use_aux_norm"),
    ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"),
)
# Ways to say one thing in different values: what the file says in another way is dropped.
_TAPS = ("eagle_aux_hidden_state_layer_ids", "target_layer_ids", "aux_hidden_state_layer_ids")  # one less in objects
_INSTEAD = (
    _TAPS,
    ("layer_types", "sliding_window_pattern", "_sliding_window_pattern", "max_window_layers"),
)
# Objects whose entries other files have at the top level.
_OBJECTS = ("dflash_config", "eagle_config", "transformer_layer_config")
# Rotary settings that may stand next to `rope_scaling` and `rope_parameters`, or within.
_ROTARY = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_FULL, _LOCAL = "full_attention", "sliding_attention"


def with_changes(entries: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a `config.json` with changes, which win over every spelling in the file.

    Raises:
        ValueError: the changes state one rotary setting twice, differently.
    """
    objects = {name: entries[name] for name in _OBJECTS if isinstance(entries.get(name), Mapping)}
    objects = {name: inner for name, inner in objects.items() if name not in changes}
    merged, within = dict(entries), {name: dict(inner) for name, inner in objects.items()}
    for name, value in changes.items():
        spellings = next((group for group in _SAME if name in group), (name,))
        for group in (group for group in _INSTEAD if name in group):
            for other in set(group).difference(spellings, changes):
                for place in (merged, *within.values()):
                    place.pop(other, None)
        if name in _TAPS:
            for inner in within.values():
                inner.pop(name, None)
        is_replaced = False
        for place in (merged, *within.values()):
            for spelling in spellings:
                if spelling in place and spelling not in changes.keys() - {name}:
                    place[spelling], is_replaced = value, True
        if not is_replaced:
            merged[name.removeprefix("_")] = value
    for name, inner in within.items():
        rotary = {key: value for key, value in changes.items() if key not in entries and _has_rotary(inner, key)}
        merged[name] = _with_rotary(objects[name], inner, rotary)
        changes = {key: value for key, value in changes.items() if key not in rotary}
        for key in rotary:
            merged.pop(key, None)
    return _with_rotary(entries, merged, changes)


def _has_rotary(inner: Mapping[str, Any], name: str) -> bool:
    """Returns whether an object is where this rotary setting belongs: it has a Llama's rotary settings."""
    return name in (*_ROTARY, "rope_scaling", "rope_parameters") and bool(
        {"rope_theta", "rope_scaling", "rope_parameters"} & inner.keys()
    )


def _with_rotary(entries: Mapping[str, Any], merged: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns rotary changes in both of transformers' spellings; `merged` has them with the file's other ones."""
    asked, stated = changes.get("rope_parameters"), entries.get("rope_parameters")
    if isinstance(asked, Mapping):
        for name in {*_ROTARY} & asked.keys() & changes.keys():
            if asked[name] != changes[name]:
                raise ValueError(
                    f"{name} is {changes[name]!r} and {asked[name]!r} in rope_parameters; give one of them"
                )
        places = changes, _settings(stated), entries, _settings(entries.get("rope_scaling"))
        theta = next((place["rope_theta"] for place in places if "rope_theta" in place), None)
        if _FULL not in asked and theta is not None:
            asked = {"rope_theta": theta, **asked}
        if "rope_scaling" not in changes:
            merged.pop("rope_scaling", None)
        return merged | {"rope_parameters": asked}
    theta = _settings(entries.get("rope_scaling")).get("rope_theta")
    if "rope_scaling" in changes and theta is not None:
        merged.setdefault("rope_theta", theta)
    scaling = changes.get("rope_scaling", entries.get("rope_scaling"))
    if isinstance(scaling, Mapping):
        merged["rope_scaling"] = scaling = _replaced(scaling, changes)
    if not isinstance(stated, Mapping) or not stated or "rope_parameters" in changes:
        return merged
    settings = _settings(stated)
    if "rope_scaling" in changes and isinstance(scaling, Mapping | None):
        rope_settings: dict[str, Any] = {
            name: settings[name] for name in ("rope_theta", "partial_rotary_factor") if name in settings
        }
        settings = {**rope_settings, **(scaling or {})}
        merged.pop("rope_scaling", None)
    settings = _replaced({"rope_theta": None, **settings} if "rope_theta" in changes else settings, changes)
    if _FULL not in stated:
        return merged | {"rope_parameters": settings}
    local = dict(stated.get(_LOCAL) or {})
    if "rope_local_base_freq" in changes:
        local["rope_theta"] = changes["rope_local_base_freq"]
    return merged | {"rope_parameters": {**stated, _FULL: settings, _LOCAL: local}}


def _settings(stated: Any) -> dict[str, Any]:
    """Returns the settings of layers that see everything, in `rope_parameters` of one kind of layer or of two."""
    settings = stated.get(_FULL, stated) if isinstance(stated, Mapping) else {}
    return dict(settings) if isinstance(settings, Mapping) else {}


def _replaced(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in which changes replace rotary entries that are there."""
    return {name: changes.get(name, value) if name in _ROTARY else value for name, value in settings.items()}
