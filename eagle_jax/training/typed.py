"""Builds frozen dataclasses from plain mappings (YAML files, `key=value` assignments), by their annotations."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import yaml

T = TypeVar("T")


def build(cls: type[T], mapping: Mapping[str, Any], where: str = "") -> T:
    """Builds `cls(**mapping)`, with inner mappings built as the dataclasses of its fields.

    Args:
        where: dotted path of the mapping, for error messages.

    Raises:
        ValueError: an unknown or missing key, or a value of another type.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # always a dataclass
    for key in mapping:
        if key not in fields:
            raise ValueError(f"{_path(where, key)} is not known; {_suggestion(str(key), fields)}")
    values = {key: _value(hints[key], value, _path(where, key)) for key, value in mapping.items()}
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{_path(where, name)} is missing; give it a value")
    return cls(**values)


def overlay(settings: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Applies assignments `inner.key=value` to `settings`; values are YAML, such as `null`, `3e-4` and `[a, b]`."""
    merged = _copy(settings)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        *sections, last = path.strip().split(".")
        if not equals or not last:
            raise ValueError(f"--set {assignment!r}: expected key=value, such as optimizer.rate=1e-4")
        section = merged
        for key in sections:
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                raise ValueError(f"--set {assignment!r}: {key} has no settings inside")
        section[last] = read_yaml(text, f"--set {assignment!r}")
    return merged


def read_yaml(text: str, where: str) -> Any:
    """Parses YAML. Raises ValueError if it is invalid or has a duplicate key."""
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise yaml.YAMLError(f"duplicate key {duplicate!r} in the mapping at line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in options:
            return None
        return _value(next(option for option in options if option is not type(None)), value, where)
    if origin is Literal:
        if value not in options:
            raise ValueError(f"{where}={value!r}; expected {' or '.join(map(str, options))}")
        return value
    if origin is tuple:
        return _sequence(options, value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}={value!r}; expected settings inside it")
        return build(hint, value, where)
    return _scalar(hint, value, where)


def _sequence(options: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"{where}={value!r}; expected a list")
    kinds = [options[0]] * len(items) if Ellipsis in options else list(options)
    if len(items) != len(kinds):
        raise ValueError(f"{where}={value!r}; expected {len(kinds)} values")
    return tuple(_value(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, items, strict=True)))


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float:
        number = _float(value)
        if number is not None:
            return number
    elif isinstance(value, hint) and (hint is bool) == isinstance(value, bool):
        return value
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
    raise ValueError(f"{where}={value!r}; expected {names[hint]}")


def _float(value: Any) -> float | None:
    """Returns the finite number of a value, also of text, since YAML 1.1 reads 3e-5 as text; else None."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _path(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _suggestion(key: str, fields: Mapping[str, Any]) -> str:
    matches = difflib.get_close_matches(key, fields, n=1)
    return f"did you mean {matches[0]}?" if matches else f"expected one of {', '.join(fields)}"


def _copy(settings: Any) -> Any:
    return {key: _copy(value) for key, value in settings.items()} if isinstance(settings, dict) else settings
