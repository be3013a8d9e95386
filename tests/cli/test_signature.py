"""Dataclasses in the signature of a command are options of it."""

import dataclasses
import inspect
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from eagle_jax.cli.console import one_sentence
from eagle_jax.cli.signature import flat


@dataclasses.dataclass(frozen=True)
class Drawing:
    top_k: Annotated[int, typer.Option("--top-k", help="How many.")] = 0
    seed: Annotated[int, typer.Option("--seed")] = 7

    def __post_init__(self):
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k} is negative")


@dataclasses.dataclass(frozen=True)
class Greedy(Drawing):
    top_k: int = dataclasses.field(default=1, init=False)


def command(word: str, drawing: Drawing = Drawing(seed=3), end: Annotated[str, typer.Option("--end")] = ".") -> None:
    print(word, drawing, end)


def test_fields_stand_where_the_dataclass_stood():
    signature, arguments = flat(command)
    assert list(signature.parameters) == ["word", "top_k", "seed", "end"]
    assert signature.parameters["top_k"].annotation == Drawing.__annotations__["top_k"]
    assert [parameter.default for parameter in signature.parameters.values()] == [inspect.Parameter.empty, 0, 3, "."]
    assert arguments(dict(word="a", top_k=5, seed=1, end="")) == dict(word="a", drawing=Drawing(5, 1), end="")


def test_a_field_without_init_is_no_option():
    def greedy(drawing: Greedy = Greedy()) -> None:
        pass

    signature, arguments = flat(greedy)
    assert list(signature.parameters) == ["seed"] and arguments({"seed": 5}) == {"drawing": Greedy(seed=5)}


def test_two_options_of_one_name_are_refused():
    def twice(a: Drawing = Drawing(), b: Drawing = Drawing()) -> None:
        pass

    with pytest.raises(ValueError, match="duplicate parameter name"):
        flat(twice)


def test_what_a_dataclass_refuses_is_one_sentence():
    app = typer.Typer()
    app.command()(one_sentence(command))
    assert CliRunner().invoke(app, ["a", "--top-k", "2"]).stdout == "a Drawing(top_k=2, seed=3) .\n"
    shown = CliRunner().invoke(app, ["a", "--top-k", "-2"])
    assert (shown.exit_code, shown.stderr) == (2, "eagle-jax: top_k=-2 is negative\n")
