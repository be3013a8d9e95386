"""Plain mappings (a YAML file, `key=value` from a command line) into frozen dataclasses, by their annotations."""

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
    """Builds `cls(**given)`, with inner mappings built as the dataclasses that its fields name.

    Args:
        where: the keys that lead to `given`, for messages.

    Raises:
        ValueError: a key that `cls` has no field for, a missing one, or a value of another type.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # always a dataclass
    for key in mapping:
        if key not in fields:
            raise ValueError(f"{_path(where, key)} is not known; {_guess(str(key), fields)}")
    values = {key: _value(hints[key], value, _path(where, key)) for key, value in mapping.items()}
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{_path(where, name)} is missing; give it a value")
    return cls(**values)


def overlay(settings: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Returns `settings` with `inner.key=value` put in; values are YAML, so `null`, `3e-4` and `[a, b]` work."""
    merged = _copy(settings)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        *outer, last = path.strip().split(".")
        if not equals or not last:
            raise ValueError(f"--set {assignment!r}: expected key=value, such as optimizer.rate=1e-4")
        at = merged
        for key in outer:
            at = at.setdefault(key, {})
            if not isinstance(at, dict):
                raise ValueError(f"--set {assignment!r}: {key} has no settings inside")
        at[last] = read_yaml(text, f"--set {assignment!r}")
    return merged


def read_yaml(text: str, where: str) -> Any:
    """Returns the value that YAML text stands for; a key that comes twice is refused."""
    try:
        return yaml.load(text, Loader=_Strict)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None


class _Strict(yaml.SafeLoader):
    """YAML's safe loader takes the last of two equal keys without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"the key {twice!r} comes twice, line {node.start_mark.line + 1} and below")
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
    """YAML 1.1 reads 3e-5, without a point, as text."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _path(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _guess(key: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, fields, n=1)
    return f"did you mean {close[0]}?" if close else f"expected one of {', '.join(fields)}"


def _copy(settings: Any) -> Any:
    return {key: _copy(value) for key, value in settings.items()} if isinstance(settings, dict) else settings
