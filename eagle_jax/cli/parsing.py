"""Parses the text of options into the api's values."""

import contextlib
import dataclasses
import json
from typing import Any

from eagle_jax import api


def parse_tree(text: str, what: str = "--tree") -> str | tuple[int | float, ...] | list[int]:
    """Parses a tree: a name, the numbers of a tree (the last may be a probability), or parents, which start with -1.

    `what` names the option in messages.
    """
    if text in ("auto", "published", "eagle1"):
        return text
    *first, last = text.split(",")
    with contextlib.suppress(ValueError):
        sizes, is_integer = [int(part) for part in first], last.strip().lstrip("-").isdigit()
        if is_integer and [*sizes, int(last)][0] == -1:
            return [*sizes, int(last)]
        if is_integer and (len(sizes) == 2 or (len(sizes) == 3 and int(last))):
            return *sizes, int(last)
        if len(sizes) in (1, 3) and not (is_integer and int(last)):
            return *sizes, float(last)
    raise ValueError(
        f"{what} {text!r} is not a tree; expected auto, published, eagle1, nodes,depth,top-k such as 60,7,10, "
        "the same with a beam such as 60,7,10,59 or with the lowest probability of a path such as 8,3,2,0.03, "
        "nodes,probability of a chain such as 6,0.8, or the parent of each node such as -1,0,0,1"
    )


def parse_set(settings: list[str] | None) -> dict[str, Any]:
    """Parses the values of `--set` into the api's `Processing`."""
    values = {}
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if name not in api.Processing.__annotations__ or not equals:
            names = ", ".join(api.Processing.__annotations__)
            raise ValueError(f"--set {setting}; expected NAME=VALUE with one of the names {names}")
        try:
            values[name] = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"--set {setting}: the value is not valid JSON ({error}); text needs quotes: --set '{name}=\"...\"'"
            ) from None
    return values


def recommended(model: api.Model, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a request, with the model's recommendation for each that has its default."""
    defaults = {field.name: field.default for field in dataclasses.fields(api.Defaults)}
    defaulted = {name for name in model.generation if options.get(name, defaults[name]) == defaults[name]}
    return options | {name: model.generation[name] for name in defaulted}


def parse_entries(text: str, what: str) -> dict[str, Any]:
    """Parses entries of a `config.json`, a JSON object; `what` names the option in messages."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f'{what} {text} is not a JSON object; expected one such as {{"rope_theta": 10000}}')
    return value


def wants_chat(model: Any, chat: bool | None) -> bool:
    """Resolves `--chat/--raw` for this model: the default is chat if the tokenizer has a template."""
    return bool(getattr(model.tokenizer, "chat_template", None)) if chat is None else chat


def parse_numbers(text: str, what: str) -> list[int]:
    """Parses whole numbers separated by commas; `what` names the option in messages."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{what} {text!r}; expected whole numbers separated by commas, such as 1,4,8") from None
