"""`eagle-jax inspect`: what a model folder holds."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import one_sentence, out, print_json


@one_sentence
def inspect(
    path: Annotated[str, typer.Argument(help="A folder with config.json and weights, or a hub name.")],
    as_json: options.Json = False,
) -> None:
    """Show what a folder holds: target or head and of which kind, its sizes, its files. Loads no weights.

    **Examples**

    - `eagle-jax inspect ./Llama-3.1-8B-Instruct`

    - `eagle-jax inspect ./EAGLE-LLaMA3.1-Instruct-8B --json`
    """
    facts = api.describe(path)
    if as_json:
        print_json(facts)
        return
    shown = Table(box=None, show_header=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    for name, value in facts.items():
        shown.add_row(name.replace("_", " "), _words(value))
    out.print(shown)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_words(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
