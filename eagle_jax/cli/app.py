"""The command and its subcommands."""

import os
import warnings
from typing import Annotated

import jax
import typer

import eagle_jax
from eagle_jax.cli.batch import batch
from eagle_jax.cli.bench import bench
from eagle_jax.cli.chat import chat
from eagle_jax.cli.console import out
from eagle_jax.cli.convert import convert
from eagle_jax.cli.datastore import datastore
from eagle_jax.cli.demo import demo
from eagle_jax.cli.eval import evaluate
from eagle_jax.cli.generate import generate
from eagle_jax.cli.inspect import inspect
from eagle_jax.cli.models import models
from eagle_jax.cli.plan import plan
from eagle_jax.cli.profile import profile
from eagle_jax.cli.quantize import quantize
from eagle_jax.cli.regenerate import regenerate
from eagle_jax.cli.serve import serve
from eagle_jax.cli.train import train
from eagle_jax.cli.tune import tune
from eagle_jax.cli.ui import ui

app = typer.Typer(
    name="eagle-jax",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    generate,
    chat,
    ui,
    serve,
    batch,
    bench,
    inspect,
    models,
    plan,
    convert,
    quantize,
    demo,
    train,
    regenerate,
    datastore,
    tune,
    profile,
):
    app.command()(command)
app.add_typer(evaluate, name="eval")


def _version(requested: bool) -> bool:
    if requested:
        out.print(f"eagle-jax {eagle_jax.__version__}, jax {jax.__version__}")
        raise typer.Exit()
    return requested


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show versions.")
    ] = False,
) -> None:
    """Lossless speculative decoding for Llama-family models, in JAX.

    A small EAGLE head drafts a tree of continuations, the model checks the whole tree in one pass, and the text is
    exactly what plain decoding would have written. Without `--target` a command uses SmolLM2-135M-Instruct,
    downloaded once (93 MB); `--target toy` is a small pair that comes with the package.
    """
    # transformers is used for tokenizers and configs alone, so it need not warn that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a failed download is reported in one sentence
    warnings.formatwarning = lambda message, *_, **__: f"eagle-jax: {message}\n"  # no source line


def main() -> None:
    """The entry point of the `eagle-jax` script."""
    app(prog_name="eagle-jax")
