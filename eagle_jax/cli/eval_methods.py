"""Parses the methods of `eagle-jax eval --methods`, and gives each a model."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from eagle_jax import api
from eagle_jax.api import METHODS
from eagle_jax.cli import parsing
from eagle_jax.evaluation import Method


class ParsedMethod(NamedTuple):
    """A method as typed, and the `--head` after its `@`, if any."""

    method: Method
    head: str | None


def parse_methods(text: str) -> list[ParsedMethod]:
    """Parses `plain,eagle:60,7,10,eagle@HEAD`; a comma before a letter begins a new method."""
    parsed = []
    for name in (part.strip() for part in re.split(r",(?=\s*[A-Za-z])", text)):
        named, colon, tree = name.partition(":")
        drafter, at, head = named.partition("@")
        if drafter not in {"plain", "auto", *METHODS}:
            others = ", ".join(method for method in METHODS if method != "none")
            raise ValueError(f"--methods has {drafter}; expected some of plain, auto, {others}")
        if (colon or at) and drafter in ("plain", "none"):
            raise ValueError(f"--methods has {name}, but {drafter} drafts nothing; write {drafter} alone")
        if at and not head:
            raise ValueError(f"--methods has {name}, with nothing after the @; name one of the --head there")
        shape = parsing.parse_tree(tree, f"the tree of {drafter},") if colon else "auto"
        parsed.append(ParsedMethod(Method(name, "none" if drafter == "plain" else drafter, shape), head or None))
    names = [method.name for method, _ in parsed]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--methods names {twice[0]} twice; each method is asked once")
    return parsed


def with_models(
    parsed: Sequence[ParsedMethod], heads: Mapping[str, api.Model], model: api.Model
) -> list[tuple[Method, dict[str, int]]]:
    """Returns each method with the model that it runs on, and the shape of its trees.

    Args:
        heads: models by `--head`. A method that names no head takes the first suitable model that no method names.
        model: the target with its own head.
    """
    named = {head for _, head in parsed}
    for method, head in parsed:
        if head not in {None, *heads}:
            raise ValueError(f"--methods has {method.name}, and no --head is {head}; give --head {head} too")
    others = [*(one for head, one in heads.items() if head not in named), model]
    return [_with_model(method, others if head is None else [heads[head]]) for method, head in parsed]


def _with_model(method: Method, models: Sequence[api.Model]) -> tuple[Method, dict[str, int]]:
    problems = []
    for model in models:
        try:
            shape = api.tree_shape(model, method.drafter, method.tree)
            return dataclasses.replace(method, model=model), {"nodes": shape.nodes, "depth": shape.depth}
        except ValueError as error:
            problems.append(error)
    raise problems[-1]


def refuse_unused(
    methods: Sequence[Method], heads: Mapping[str, api.Model], draft: str | None, datastore: str | None
) -> None:
    """Raises ValueError if no method uses a head, draft model or datastore that was given."""
    needs = {method.name: _needs(method) for method in methods}
    unused = [
        f"--head {name}"
        for name, model in heads.items()
        if not any(method.model is model and needs[method.name] == "head" for method in methods)
    ]
    for option, value, what in (("--draft-model", draft, "draft"), ("--datastore", datastore, "datastore")):
        if value is not None and what not in needs.values():
            unused.append(f"{option} {value}")
    if unused:
        names = ", ".join(needs)
        raise ValueError(f"none of {names} drafts with {unused[0]}; leave it out, or name a method that does")


def _needs(method: Method) -> str:
    """Returns the argument of `load` that the method needs: "head", "draft", "datastore", or "" for none."""
    if method.drafter == "auto":
        return "draft" if method.model is not None and method.model.head is None else "head"
    return METHODS[method.drafter].needs[1]
