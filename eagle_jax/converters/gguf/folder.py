"""Converts a GGUF file to a model folder for `load` and transformers."""

import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from eagle_jax.converters import llama, names
from eagle_jax.converters.families import tensors as family_tensors
from eagle_jax.converters.files import Weights, is_gguf
from eagle_jax.converters.gguf.config import config_entries, end_ids
from eagle_jax.converters.gguf.tokenizer import tokenizer_of
from eagle_jax.converters.heads import mtp
from eagle_jax.converters.hub.resolving import resolve
from eagle_jax.converters.writing import refuse_model, write_folder


def convert_gguf(source: str | pathlib.Path, folder: str | pathlib.Path, *, dtype: Any = "bfloat16") -> None:
    """Writes the model in a GGUF file to `folder`: config, safetensors, tokenizer, chat template, generation config.

    Args:
        source: a `.gguf` file; weights of every type are expanded to floats.
        folder: folder to write to; created if needed.
        dtype: `float32`, `bfloat16` or `float16`.

    Raises:
        FileNotFoundError, FileExistsError: the source is missing, or the folder holds a model already.
        ValueError: the source is not a GGUF file, or not a supported one.
        ImportError: the `gguf` library is not installed.
    """
    source, folder = resolve(source), pathlib.Path(folder)
    if source.is_dir():
        raise ValueError(f"{source} is a folder; expected a GGUF file")
    if not is_gguf(source):
        raise ValueError(f"{source} is no GGUF file; expected one whose name ends in .gguf")
    refuse_model(folder)
    weight_dtype = names.float_dtype(dtype)
    weights = Weights(source)
    config = llama.read_config(source)
    llama.check_target(weights, config)
    if mtp.is_present(weights.info):
        mtp.divide(weights, config)
    tokenizer = tokenizer_of(source)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for name in weights.info:
            yield name, np.ascontiguousarray(weights.take(name).astype(weight_dtype))

    entries = config_entries(source)
    with tempfile.TemporaryDirectory() as temporary:
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        generation = {key: entries[key] for key in ("bos_token_id",) if key in entries}
        generation["eos_token_id"] = end_ids(source)
        (pathlib.Path(temporary) / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        write_folder(
            folder,
            entries | {"torch_dtype": weight_dtype.name},
            family_tensors.join(config, tensors()),
            extra_files=pathlib.Path(temporary).iterdir(),
        )
