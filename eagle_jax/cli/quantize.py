"""`eagle-jax quantize`: a model or a head with quantized weights, in a folder of its own."""

from typing import Annotated

import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import one_sentence, out, writing


@one_sentence
def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder, hub name or GGUF file of a model or a head.")],
    folder: Annotated[str, typer.Argument(metavar="DST", help="Folder to write; must not hold a model yet.")],
    to: Annotated[
        str,
        options.option(
            "--to KIND",
            "int8, int4 (groups of 32), int4-128, int4-asym or int4-128-asym (with zero points); after a slash "
            "what the output matrix becomes: int4/int4.",
        ),
    ] = "int8",
    requantize: Annotated[
        bool, options.option("--requantize", "Quantize a second time what is quantized to another width already.")
    ] = False,
) -> None:
    """Write a model or a head with its weights quantized to 8 or 4 bits, in the format that vLLM reads too.

    Every command reads the folder as any other. One that reads the model only once may as well quantize it on the way:
    `--quantize`. What is quantized already is kept where the width is the same, and refused where it is another.

    **Examples**

    - `eagle-jax quantize ./llama ./llama-int8`

    - `eagle-jax quantize ./eagle-head ./eagle-head-int4 --to int4-128`

    - `eagle-jax quantize ./llama-awq ./llama-int8 --requantize`
    """
    with writing(folder, "Quantizing") as to_folder:
        api.quantize(source, to_folder, to, requantize=requantize)
    out.print(f"Wrote {to_folder} as {to}.", markup=False)
