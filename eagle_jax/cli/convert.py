"""`eagle-jax convert`: a draft head to the format of another library."""

import pathlib
from typing import Annotated, Literal

import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import err, one_sentence, out


@one_sentence
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder or hub name of a head, in any of the formats.")],
    folder: Annotated[pathlib.Path, typer.Argument(metavar="DST", help="Folder to write; must not hold a model yet.")],
    to: Annotated[
        Literal["safeailab", "sglang", "speculators"],
        typer.Option("--to", help="safeailab: the authors' code; sglang; speculators: vLLM."),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="PATH|NAME",
            help="Folder or hub name of the target, or a name that `eagle-jax models` lists; only its config.json is "
            "read. speculators needs it.",
        ),
    ] = None,
    head_config: Annotated[
        str | None,
        typer.Option(
            "--head-config",
            metavar="JSON",
            help="Entries that take the place of those in the head's config.json, such as '{\"rope_theta\": 10000}'.",
        ),
    ] = None,
) -> None:
    """Write a draft head in the format of another library. Tensors keep their values, bit for bit.

    EAGLE-3 heads whose config does not name the target layers that they read need `--target` too. A head that the
    other library would run as a different one is refused, with the reason.

    **Examples**

    - `eagle-jax convert ./my-head ./for-vllm --to speculators --target meta-llama/Llama-3.1-8B-Instruct`

    - `eagle-jax convert ./my-head ./for-sglang --to sglang`
    """
    changes = None if head_config is None else options.parse_entries(head_config, "--head-config")
    with err.status("Converting"):
        api.convert(source, folder, to, target=target, changes=changes)
    out.print(f"Wrote {folder} for {to}.", markup=False)
