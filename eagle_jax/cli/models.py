"""`eagle-jax models`: lists the published pairs that `--target` takes by name."""

from typing import Any

from rich import box
from rich.table import Table

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import one_sentence, out, print_json


@one_sentence
def models(as_json: options.Json = False) -> None:
    """List the published pairs of a model and its head, and the memory of their weights.

    `--target` takes a name and downloads both folders from the Hugging Face hub, once; SmolLM2 comes from the Python
    registry, and its head with the package. Memory is for weights alone, with matrices in bfloat16 or quantized to 8 or
    4 bits and embeddings in bfloat16; `+` if the size of the head, `?` if that of the model is unknown before the
    download.

    **Examples**

    - `eagle-jax models`

    - `eagle-jax generate --target llama-3.1-8b-instruct "Tell me about rivers."`
    """
    if as_json:
        print_json([_facts(pair) for pair in api.PAIRS])
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("name (method), target, head", overflow="fold")
    for heading in ("10^9", "bf16", "int8", "int4"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for pair in api.PAIRS:
        facts = _facts(pair)
        more = "+" if pair.head_sizes is None else ""
        shown.add_row(
            f"[bold]{pair.name}[/bold] ({pair.method})\n  {pair.target}\n  {pair.head}",
            f"\n{_billions(facts['target_parameters'])}\n{_billions(facts['head_parameters'])}",
            *(f"{size / 1e9:.1f}{more}" for size in (facts["memory"] or {}).values()),
        )
    out.print(shown)
    out.print("10^9: parameters in billions; bf16, int8, int4: memory for the weights of both, in GB.")


def _billions(parameters: int | None) -> str:
    return "?" if parameters is None else f"{parameters / 1e9:.2f}"


def _facts(pair: Any) -> dict[str, Any]:
    return {
        "name": pair.name,
        "method": pair.method,
        "target": pair.target,
        "head": pair.head,
        "target_parameters": None if pair.target_sizes is None else pair.target_sizes.count.total,
        "head_parameters": None if pair.head_sizes is None else pair.head_sizes.count.total,
        "memory": pair.memory and dict(pair.memory),
    }
