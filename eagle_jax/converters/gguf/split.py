"""GGUF models in several files: `NAME-00001-of-0000N.gguf` and so on, as llama-gguf-split names them."""

import pathlib
import re

from eagle_jax.converters.errors import listed

_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def part_paths(path: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Returns all files of the model whose only or first file this is.

    Raises:
        FileNotFoundError: some are not there.
        ValueError: it is another part than the first.
    """
    match = _PART.fullmatch(path.name)
    count = int(match["count"]) if match else 1
    if match is None or count <= 1:
        return (path,)
    parts = tuple(path.with_name(f"{match['name']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))
    if int(match["number"]) != 1:
        raise ValueError(f"{path} is one of {count} parts of a model; give the first of them, {parts[0].name}")
    if missing := [part.name for part in parts if not part.is_file()]:
        raise FileNotFoundError(
            f"{len(missing)} of the {count} parts of {path} are missing: {listed(missing)}; copy or download them too"
        )
    return parts
