"""The keys of a `config.json`: which are used, which change nothing, which are ignored, and which are refused.

A key that transformers does not know for a `model_type` cannot change the model, so for a target it is ignored and
logged. A key that transformers knows and this package does not support must have its default. An unknown key of a draft
head, which runs on its author's code, may mean anything: it must be empty.
"""

import dataclasses
import functools
import logging
import reprlib
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("eagle_jax.converters")

# Long values, such as quantization_config, are truncated in messages.
_short = reprlib.Repr()
_short.maxdict, _short.maxlist, _short.maxstring, _short.maxother = 2, 4, 60, 60

_EMPTY: tuple[Any, ...] = (None, "", [], {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables:
    """The known keys of one kind of file.

    Attributes:
        read: keys whose values are used.
        fixed: keys that may change the model, with the values that do not change it, the default first.
        neutral: keys that never change the model.
    """

    read: frozenset[str]
    fixed: Mapping[str, tuple[Any, ...]]
    neutral: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys of one file.

    Attributes:
        modelled: entries that are read.
        neutral: keys that change nothing, or have the value at which they do not.
        unknown: keys that are ignored.
        refused: a clause for each key that may change the model.
    """

    modelled: Mapping[str, Any]
    neutral: tuple[str, ...]
    unknown: tuple[str, ...]
    refused: tuple[str, ...]

    def check(self) -> None:
        """Raises ValueError that names every refused key."""
        if self.refused:
            raise ValueError("; ".join(self.refused))


def split_target(entries: Mapping[str, Any], tables: Tables, model_type: str) -> Keys:
    """Classifies the keys of a target's config, using transformers' defaults."""
    keys, rest = _split(entries, tables)
    if not rest:
        return keys
    defaults = transformers_defaults(model_type)
    default_names = [name for name in rest if name in defaults and rest[name] == defaults[name]]
    changed = [name for name in rest if name in defaults and name not in default_names]
    return dataclasses.replace(
        keys,
        neutral=(*keys.neutral, *default_names),
        unknown=tuple(name for name in rest if name not in defaults),
        refused=(*keys.refused, *(_unsupported(name, rest[name], defaults[name]) for name in changed)),
    )


def split_head(entries: Mapping[str, Any], tables: Tables) -> Keys:
    """Classifies the keys of a draft head's config. Unknown keys that are false, null or empty are ignored."""
    keys, rest = _split(entries, tables)
    empty = tuple(name for name, value in rest.items() if value is False or value in _EMPTY)
    unknown = [f"{name}={_short.repr(value)}" for name, value in rest.items() if name not in empty]
    if not unknown:
        return dataclasses.replace(keys, unknown=empty)
    names, are = f"config key{'s' * (len(unknown) > 1)} {', '.join(unknown)}", "is" if len(unknown) == 1 else "are"
    clause = f"{names} {are} not known and may change the head; remove what does not"
    return dataclasses.replace(keys, unknown=empty, refused=(*keys.refused, clause))


def check_head(entries: Mapping[str, Any], tables: Tables) -> None:
    """Raises ValueError that names every key that may change the head, and logs the ignored ones."""
    keys = split_head(entries, tables)
    keys.check()
    if keys.unknown:
        log.warning("ignored in a draft head's config, as they are false or empty: %s", ", ".join(keys.unknown))


@functools.cache
def transformers_defaults(model_type: str) -> Mapping[str, Any]:
    """Returns the defaults of transformers' config class, by attributes and aliases; empty if there is no class."""
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:  # the family is newer than the installed transformers
        return {}
    config = CONFIG_MAPPING[model_type]()
    return vars(config) | {alias: getattr(config, alias) for alias in config.attribute_map}


def _split(entries: Mapping[str, Any], tables: Tables) -> tuple[Keys, dict[str, Any]]:
    """Classifies the keys in the tables, and returns the other entries with them."""
    modelled: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    neutral, refused = [], []
    for name, value in entries.items():
        if name in tables.fixed:
            allowed = tables.fixed[name]
            if value in allowed:
                neutral.append(name)
            else:
                refused.append(_unsupported(name, value, allowed[0]))
        elif name in tables.read:
            modelled[name] = value
        elif name in tables.neutral:
            neutral.append(name)
        else:
            rest[name] = value
    keys = Keys(modelled=modelled, neutral=tuple(neutral), unknown=(), refused=tuple(refused))
    return keys, rest


def _unsupported(name: str, value: Any, expected: Any) -> str:
    return f"{name}={_short.repr(value)} is not supported; expected {_short.repr(expected)}"
