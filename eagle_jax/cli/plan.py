"""`eagle-jax plan`: the memory that a model takes on each chip of a mesh."""

import dataclasses
import math
from typing import Annotated, Any

from eagle_jax.api import Plan
from eagle_jax.api import plan as plan_of
from eagle_jax.cli import options
from eagle_jax.cli.console import err, one_sentence, print_json, write
from eagle_jax.cli.parsing import parse_numbers

EXAMPLES = ("llama-3.1-8b-instruct", "llama-3.3-70b-instruct", "mixtral-8x7b-instruct")
PARTS = ("target", "head", "cache", "buffers", "total")


@one_sentence
def plan(
    target: Annotated[
        str | None,
        options.model_option(
            "--target -t FOLDER|NAME",
            "Folder with the config.json of the model, or a name that `eagle-jax models` lists.",
        ),
    ] = None,
    head: Annotated[
        str | None,
        options.model_option("--head FOLDER", "Folder of its EAGLE head; a name includes its head."),
    ] = None,
    chips: Annotated[str, options.option("--chips N,N..", "Numbers of chips to plan for.")] = "1,4,8,64",
    memory: Annotated[float, options.option("--memory", "Memory of one chip, in GB.")] = 16.0,
    mesh: Annotated[str | None, options.option("--mesh AXES", "Plan for this mesh alone: data:2,model:4.")] = None,
    requests: Annotated[
        int, options.option("--requests", "Requests decoded together on each part of the data axis.")
    ] = 8,
    slots: Annotated[int, options.option("--slots", "Limit of prompt and answer together, in tokens.")] = 4096,
    dtype: options.Dtype = "bfloat16",
    quantize: options.Quantize = None,
    nodes: Annotated[int, options.option("--nodes", "Nodes of a draft tree; 1 is plain decoding.")] = 60,
    as_json: options.Json = False,
) -> None:
    """Show the memory of weights, caches and buffers on each chip of a mesh, computed from configurations alone.

    Without `--target` it plans for an 8B, a 70B and a mixture of experts. The mesh has as few chips along `model` as
    leave a tenth of a chip's memory free; the others decode further requests along `data`.

    **Examples**

    - `eagle-jax plan --target llama-3.1-8b-instruct --chips 4,8 --memory 95`

    - `eagle-jax plan --target llama-3.1-8b-instruct --mesh data:2,model:4 --requests 32`

    - `eagle-jax plan --target llama-3.1-8b-instruct --chips 1 --requests 1 --quantize int8`
    """
    if not 0 < memory < math.inf:
        raise ValueError(f"--memory {memory:g}; expected the gigabytes of a chip, such as 16")
    arguments: dict[str, Any] = dict(memory=memory * 1e9, requests=requests, slots=slots, nodes=nodes, dtype=dtype)
    arguments |= {} if quantize is None else {"quantize": quantize}
    meshes: list[Any] = [dict(mesh=mesh)] if mesh else [dict(chips=n) for n in parse_numbers(chips, "--chips")]
    names = EXAMPLES if target is None else (target,)
    plans = [(name, plan_of(name, head, **arguments, **one)) for name in names for one in meshes]
    if as_json:
        print_json(
            [
                {"model": name} | dataclasses.asdict(one) | {"buffers": one.buffers, "total": one.total}
                for name, one in plans
            ]
        )
        return
    headings = ("model", "chips", "mesh", "requests", *PARTS, f"fits {memory:g} GB")
    rows = [(name, *_row(one), "yes" if one.total <= memory * 1e9 else "no") for name, one in plans]
    write(_markdown(headings, rows))
    err.print(f"GB on each chip; caches for {slots} tokens of each request.", style="dim")


def _markdown(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Formats a Markdown table with words aligned left and numbers right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    words = [not all(row[i].replace(".", "").isdigit() for row in rows) for i in range(len(headings))]
    ruler = [f":{'-' * (w - 1)}" if word else f"{'-' * (w - 1)}:" for w, word in zip(widths, words, strict=True)]
    lines = [
        [f"{cell:<{w}}" if word else f"{cell:>{w}}" for cell, w, word in zip(line, widths, words, strict=True)]
        for line in (headings, ruler, *rows)
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(plan: Plan) -> tuple[str, ...]:
    chips, axes = math.prod(plan.mesh.values()), ",".join(f"{axis}:{size}" for axis, size in plan.mesh.items())
    return str(chips), axes, str(plan.requests), *(f"{getattr(plan, part) / 1e9:.2f}" for part in PARTS)
