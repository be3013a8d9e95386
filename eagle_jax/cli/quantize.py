"""`eagle-jax quantize`: writes a model or head with quantized weights."""

from typing import Annotated

import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import one_sentence, out, writing


@one_sentence
def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder, hub name or GGUF file of a model or a head.")],
    folder: Annotated[str, typer.Argument(metavar="DST", help="Folder to write; must not hold a model.")],
    to: Annotated[
        str,
        options.option(
            "--to KIND",
            "int8, int4 (groups of 32), int4-128, int4-asym or int4-128-asym (with zero points); the kind of the "
            "output matrix after a slash: int4/int4.",
        ),
    ] = "int8",
    requantize: Annotated[
        bool, options.option("--requantize", "Quantize weights again that are quantized to another width.")
    ] = False,
) -> None:
    """Write a model or a head with its weights quantized to 8 or 4 bits, in the format that vLLM reads too.

    Every command loads the folder like any other; a command can also quantize while it loads: `--quantize`. Weights
    that are quantized already are kept if the width is the same, and refused if it is not.

    **Examples**

    - `eagle-jax quantize ./llama ./llama-int8`

    - `eagle-jax quantize ./eagle-head ./eagle-head-int4 --to int4-128`

    - `eagle-jax quantize ./llama-awq ./llama-int8 --requantize`
    """
    with writing(folder, "Quantizing") as to_folder:
        api.quantize(source, to_folder, to, requantize=requantize)
    out.print(f"Wrote {to_folder} as {to}.", markup=False)
