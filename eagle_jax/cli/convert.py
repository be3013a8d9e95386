"""`eagle-jax convert`: writes a draft head for another library, or a GGUF file as a model folder."""

import pathlib
from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from eagle_jax import api
from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import one_sentence, out, writing


@one_sentence
def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="Folder or hub name of a head, a .gguf file, or the name of a pair.")
    ],
    folder: Annotated[str, typer.Argument(metavar="DST", help="Folder to write; must not hold a model.")],
    to: Annotated[
        Literal["safeailab", "sglang", "speculators", "dflash"] | None,
        options.option(
            "--to", "Format of a head. safeailab: EAGLE's authors; sglang; speculators: vLLM; dflash: DFlash's authors."
        ),
    ] = None,
    target: Annotated[
        str | None,
        options.option(
            "--target -t PATH|NAME",
            "Folder or hub name of the target, or a name that `eagle-jax models` lists; only its config.json is "
            "read. speculators needs it.",
        ),
    ] = None,
    head_config: Annotated[
        str | None,
        options.option(
            "--head-config JSON",
            "Entries that replace those of the head's config.json, such as '{\"rope_theta\": 10000}'.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        options.option(
            "--dtype",
            "Type of the weights; by default bfloat16 for a .gguf file, and as stored for a head. "
            "Quantized weights become floats.",
        ),
    ] = None,
) -> None:
    """Write a draft head in the format of another library, or the model in a GGUF file as a folder.

    A name that `eagle-jax models` lists stands for the pair's head with --to, and without it for SmolLM2's file.

    A head's tensors keep their values, bit for bit; with --dtype all become floats of that type, for readers that do
    not support the quantization. The folder of a GGUF file has its weights expanded to floats, its tokenizer, chat
    template and generation config, and transformers reads it too.

    EAGLE-3 heads whose config does not name the target layers that they read need `--target`. A head that the other
    library would run differently is refused, with the reason.

    **Examples**

    - `eagle-jax convert ./my-head ./for-vllm --to speculators --target meta-llama/Llama-3.1-8B-Instruct`

    - `eagle-jax convert ./my-head ./for-sglang --to sglang`

    - `eagle-jax convert ./my-int8-head ./for-vllm --to speculators --target ./llama-3.1-8b --dtype bfloat16`

    - `eagle-jax convert ./SmolLM2-135M-Instruct.Q8_0.gguf ./smollm2`

    - `eagle-jax convert smollm2-135m-instruct ./smollm2`
    """
    file = source if source.endswith(".gguf") else api.gguf_of(source) if to is None else None
    if file is not None:
        _convert_gguf(file, folder, dtype, {"--to": to, "--target": target, "--head-config": head_config})
        return
    if to is None:
        raise ValueError(
            f"{source or 'an empty name'} does not end in .gguf as such files do; a head is converted with --to "
            "safeailab, sglang, speculators or dflash"
        )
    changes = None if head_config is None else parsing.parse_entries(head_config, "--head-config")
    with writing(folder, "Converting") as to_folder:
        api.convert(source, to_folder, to, target=target, changes=changes, dtype=dtype)
    out.print(f"Wrote {to_folder} for {to}.", markup=False)


def _convert_gguf(
    source: str | pathlib.Path, folder: str, dtype: str | None, head_options: Mapping[str, str | None]
) -> None:
    wrong = [name for name, value in head_options.items() if value is not None]
    if wrong:
        raise ValueError(f"{wrong[0]} is for heads, and {source} is a GGUF file; leave it out")
    with writing(folder, "Converting") as to_folder:
        api.convert_gguf(source, to_folder, dtype=dtype or "bfloat16")
    out.print(f"Wrote {to_folder}.", markup=False)
