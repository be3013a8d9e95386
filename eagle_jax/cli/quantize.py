"""`eagle-jax quantize`: a model or a head with its weights rounded, in a folder of its own."""

from typing import Annotated

import typer

from eagle_jax import api
from eagle_jax.cli.console import one_sentence, out, writing


@one_sentence
def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder or hub name of a model or a head.")],
    folder: Annotated[str, typer.Argument(metavar="DST", help="Folder to write; must not hold a model yet.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="KIND",
            help="int8, int4 (groups of 32) or int4-128; after a slash what the output matrix becomes: int4/int4.",
        ),
    ] = "int8",
) -> None:
    """Write a model or a head with its weights rounded to 8 or 4 bits, in the format that vLLM reads too.

    Every command reads the folder as any other. One that reads the model only once may as well round it on the way:
    `--quantize`.

    **Examples**

    - `eagle-jax quantize ./llama ./llama-int8`

    - `eagle-jax quantize ./eagle-head ./eagle-head-int4 --to int4-128`
    """
    with writing(folder, "Rounding") as to_folder:
        api.quantize(source, to_folder, to)
    out.print(f"Wrote {to_folder} as {to}.", markup=False)
