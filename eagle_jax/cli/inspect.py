"""`eagle-jax inspect`: describes a model folder or GGUF file."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import one_sentence, out, print_json
from eagle_jax.cli.report import facts_table, operations_table


@one_sentence
def inspect(
    path: Annotated[
        str | None, typer.Argument(help="A folder with config.json and weights, a .gguf file, or a pair's name.")
    ] = None,
    ops: Annotated[
        bool, options.option("--ops", "Show the measurements of operations on this machine instead.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show what a folder holds: target or head, its kind, sizes and files, and whether it can be loaded.

    For an EAGLE-3 head also the target layers that it reads (`taps`: the residual stream entering them, counted from
    0), the number of tokens that it drafts (`draft_vocab_size`), and its flags. For quantized weights, in a folder or a
    GGUF file, how each kind of matrix is stored, and how it is loaded.

    **Examples**

    - `eagle-jax inspect ./Llama-3.1-8B-Instruct`

    - `eagle-jax inspect ./Llama-3.1-8B-Instruct-Q8_0.gguf`

    - `eagle-jax inspect ./EAGLE-LLaMA3.1-Instruct-8B --json`

    - `eagle-jax inspect --ops`
    """
    if ops:
        findings = api.operation_findings()
        print_json([dataclasses.asdict(one) for one in findings]) if as_json else out.print(operations_table(findings))
        return
    if path is None:
        raise ValueError("nothing to inspect; name a folder, a .gguf file or a pair, or give --ops")
    description = api.describe(path)
    if as_json:
        print_json(dataclasses.asdict(description))
        return
    rows = {
        "folder": description.folder,
        "kind": description.kind,
        "format": description.format or "",
        "loads": "yes" if description.problem is None else f"no: {description.problem}",
        "parameters": f"{description.parameters:,} in {description.tensors} tensors",
        "stored as": ", ".join(f"{name}{_share(n, description.parameters)}" for name, n in description.dtypes.items()),
        "files": ", ".join(f"{name} {_megabytes(size)}" for name, size in description.files.items()),
    }
    filled = [(name, value) for name, value in rows.items() if value]
    kinds = [("kinds" if i == 0 else "", f"{of}: {text}") for i, (of, text) in enumerate(description.kinds.items())]
    config = [(name, str(value)) for name, value in _flat(description.config)]
    out.print(facts_table((*filled, *kinds, ("", ""), *config)))


def _share(part: int, total: int) -> str:
    return f" ({part / max(total, 1):.0%})" if part < total else ""


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings one by one, without those that are not set; `rope.theta` is entry `theta` of config `rope`."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            yield prefix + name, value
