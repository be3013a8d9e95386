"""`eagle-jax models`: the published pairs that `--target` knows by name."""

from typing import Any

from rich import box
from rich.table import Table

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import one_sentence, out, print_json


@one_sentence
def models(as_json: options.Json = False) -> None:
    """List the published pairs of a model and its head, and the memory that their weights take.

    A name in the first column can be given to `--target`: both folders come from the HuggingFace hub, once. Memory is
    for weights alone, with matrices in bfloat16 or rounded to 8 or 4 bits and embeddings in bfloat16; `+` where the
    size of the head is not known before it is downloaded.

    **Examples**

    - `eagle-jax models`

    - `eagle-jax generate --target llama-3.1-8b-instruct "Tell me about rivers."`
    """
    if as_json:
        print_json([_facts(pair) for pair in api.PAIRS])
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "method", "target", "head"):
        shown.add_column(heading, overflow="fold")
    for heading in ("parameters", "bf16", "int8", "int4"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for pair in api.PAIRS:
        facts = _facts(pair)
        more = "" if pair.head_sizes else "+"
        head = "?" if facts["head_parameters"] is None else f"{facts['head_parameters'] / 1e9:.2f}"
        memory = (f"{size / 1e9:.1f}{more} GB" for size in facts["memory"].values())
        shown.add_row(
            pair.name,
            pair.method,
            pair.target,
            pair.head,
            f"{facts['target_parameters'] / 1e9:.2f} + {head} B",
            *memory,
        )
    out.print(shown)


def _facts(pair: Any) -> dict[str, Any]:
    return {
        "name": pair.name,
        "method": pair.method,
        "target": pair.target,
        "head": pair.head,
        "target_parameters": pair.target_sizes.count.total,
        "head_parameters": None if pair.head_sizes is None else pair.head_sizes.count.total,
        "memory": dict(pair.memory),
    }
