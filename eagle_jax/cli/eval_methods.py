"""Methods as `eagle-jax eval --methods` takes them."""

import dataclasses
import re
from collections.abc import Sequence

from eagle_jax import api
from eagle_jax.api import METHODS
from eagle_jax.cli import options
from eagle_jax.evaluation import Method


def parse_methods(text: str) -> list[Method]:
    """`plain,eagle:60,7,10,prompt-lookup` as methods; a comma before a letter begins a new one."""
    methods = []
    for name in re.split(r",(?=\s*[A-Za-z])", text):
        drafter, colon, tree = name.strip().partition(":")
        if colon and drafter in ("plain", "none"):
            raise ValueError(f"--methods has {name.strip()}, but {drafter} drafts no tree; write {drafter} alone")
        shape = options.parse_tree(tree, f"the tree of {drafter},") if colon else "auto"
        methods.append(Method(name.strip(), "none" if drafter == "plain" else drafter, shape))
    names = [method.name for method in methods]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--methods names {twice[0]} twice; each method is asked once")
    return methods


def with_model(method: Method, models: Sequence[api.Model]) -> tuple[Method, dict[str, int]]:
    """The method with the first of the models that has what it needs, and the shape of its trees."""
    problems = []
    for model in models:
        try:
            shape = api.tree_shape(model, method.drafter, method.tree)
            return dataclasses.replace(method, model=model), {"nodes": shape.nodes, "depth": shape.depth}
        except ValueError as error:
            problems.append(error)
    raise problems[-1]


def refuse_idle(
    methods: Sequence[Method], heads: dict[str, api.Model], draft: str | None, datastore: str | None
) -> None:
    """Raises if something to draft with was given that no method takes."""
    needs = {method.name: _draws_on(method) for method in methods}
    idle = [
        f"--head {name}"
        for name, model in heads.items()
        if not any(method.model is model and needs[method.name] == "head" for method in methods)
    ]
    for option, value, what in (("--draft-model", draft, "draft"), ("--datastore", datastore, "datastore")):
        if value is not None and what not in needs.values():
            idle.append(f"{option} {value}")
    if idle:
        names = ", ".join(needs)
        raise ValueError(f"no method of {names} drafts with {idle[0]}; leave it out, or name a method that does")


def _draws_on(method: Method) -> str:
    """Which argument of `load` it drafts with: "head", "draft", "datastore", or "" for none."""
    if method.drafter == "auto":
        return "draft" if method.model is not None and method.model.head is None else "head"
    return METHODS[method.drafter].needs[1]
