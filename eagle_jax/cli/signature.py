"""Groups of options as one parameter of a command: a dataclass whose fields are the options."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def flat(command: Callable[..., None]) -> tuple[inspect.Signature, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Returns the flat signature that Typer reads, and a function from its arguments to the command's.

    The fields of a dataclass take the place of a parameter annotated with it; the parameter's default, an instance,
    has their defaults. Fields with `init=False` are not options.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        group = parameter.annotation
        if not dataclasses.is_dataclass(group):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = group, [field.name for field in dataclasses.fields(group) if field.init]
        hints = get_type_hints(group, include_extras=True)
        for field in groups[name][1]:
            annotated: dict[str, Any] = dict(default=getattr(parameter.default, field), annotation=hints[field])
            parameters.append(inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, **annotated))

    def arguments(values: dict[str, Any]) -> dict[str, Any]:
        built = {
            name: group(**{field: values.pop(field) for field in fields}) for name, (group, fields) in groups.items()
        }
        return values | built

    return inspect.Signature(parameters), arguments
