"""Tensors in a model folder: safetensors or PyTorch pickles, in one file or sharded, read one tensor at a time."""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters import packed
from eagle_jax.converters.errors import listed
from eagle_jax.converters.gguf_split import part_paths
from eagle_jax.converters.pickles import TorchFile
from eagle_jax.converters.tensor_file import GGUF, TensorFile, TensorInfo
from eagle_jax.ops.quantized import QuantType

# First found wins. Published folders may hold both kinds with the same weights; safetensors need no PyTorch.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
    "hydra_lm_head.safetensors",
    "hydra_lm_head.pt",
)


class SafetensorsFile:
    """A `.safetensors` file; only the header is read until a tensor is taken."""

    DTYPES: Mapping[str, str] = {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "I64": "int64",
        "I32": "int32",
        "I8": "int8",
        "U8": "uint8",
        "BOOL": "bool",
    }

    def __init__(self, path: pathlib.Path):
        import safetensors

        self.path = path
        try:
            self._file = safetensors.safe_open(path, framework="numpy")
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is not a whole safetensors file ({error}); copy or download it again") from error
        self.info = {
            name: TensorInfo(tuple(part.get_shape()), self.DTYPES.get(part.get_dtype(), part.get_dtype()), path)
            for name, part in slices.items()
        }

    def take(self, name: str) -> np.ndarray:
        return self._file.get_tensor(name)


class Weights:
    """All tensors of a model folder, or of a GGUF file.

    Attributes:
        folder: where they are; the file itself if it is a GGUF file.
        files: the weight files in use.
        info: every tensor by its name; a rounded weight is one (`packed`).
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.files = weight_files(folder)
        self.info: dict[str, TensorInfo] = {}
        self._holder: dict[str, TensorFile] = {}
        for path in self.files[:1] if is_gguf(folder) else self.files:  # of a GGUF file's parts the first names all
            file = opened(path)
            for name, info in file.info.items():
                if name in self.info:
                    raise ValueError(f"tensor {name} is in both {self.info[name].file} and {path}")
                self.info[name] = info
                self._holder[name] = file
        self._check_index()
        self.info = _folded(self.info, self.take)

    def take(self, name: str) -> np.ndarray:
        """The values of one tensor, once."""
        return self._holder[name].take(name)

    def take_quantized(self, name: str) -> packed.QuantizedTensor:
        """Codes and scales of one rounded weight, once."""
        info = self.info[name]
        if info.quant_type is None:
            raise ValueError(f"tensor {name} in {info.file} is {info.dtype}; expected a rounded weight")
        if name in self._holder:  # one tensor in the file too
            return self._holder[name].take_quantized(name)  # type: ignore[attr-defined]
        codes = packed.unpack(self.take(name + packed.PACKED), info.quant_type.bits, info.shape[1])
        return packed.QuantizedTensor(codes, self.take(name + packed.SCALE))

    def parts(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """What one tensor of `info` is in a file, by its name there: one tensor, or those of a rounded weight."""
        if self.info[name].quant_type is None:
            yield name, self.take(name)
            return
        for part in (packed.PACKED, packed.SCALE):
            yield name + part, self.take(name + part)
        yield name + packed.SHAPE, np.asarray(self.info[name].shape, np.int64)

    def _check_index(self) -> None:
        index = next((p for p in map(self.folder.joinpath, WEIGHT_FILES) if p.exists()), None)
        if index is None or index.suffix != ".json":
            return
        for name, file in _weight_map(index).items():
            if name not in self.info or self.info[name].file.name != file:
                raise ValueError(f"{index} places tensor {name} in {file}, which does not hold it")


def opened(path: pathlib.Path) -> TensorFile:
    """One file of tensors, as it is stored."""
    if path.suffix == GGUF:
        from eagle_jax.converters.gguf_tensors import GgufTensors

        return GgufTensors(path)
    return SafetensorsFile(path) if path.suffix == ".safetensors" else TorchFile(path)


def _folded(raw: Mapping[str, TensorInfo], take: Callable[[str], np.ndarray]) -> dict[str, TensorInfo]:
    """The same tensors with each rounded weight as one, by the name that it would have as floats."""
    folded = dict(raw)
    for name in raw:
        if name.endswith(f"weight{packed.PACKED}"):
            name = name.removesuffix(packed.PACKED)
            folded[name] = _rounded(name, raw, take)
            for part in (packed.PACKED, packed.SCALE, packed.SHAPE):
                del folded[name + part]
    return folded


def _rounded(name: str, raw: Mapping[str, TensorInfo], take: Callable[[str], np.ndarray]) -> TensorInfo:
    words = raw[name + packed.PACKED]
    for part in (packed.SCALE, packed.SHAPE):
        if name + part not in raw:
            raise ValueError(f"{words.file} has {name}{packed.PACKED} and no {name}{part}; copy or download it again")
    for part in packed.UNREAD:
        if name + part in raw:
            raise ValueError(
                f"{words.file} has {name}{part}: only weights that are rounded symmetrically and in order are read"
            )
    shape, scale = tuple(int(size) for size in take(name + packed.SHAPE)), raw[name + packed.SCALE]
    bits = packed.bits_of(words.shape[-1], shape[-1]) if len(shape) == len(words.shape) == 2 else None
    groups = scale.shape[-1] if len(scale.shape) == 2 else 0
    if bits is None or words.dtype != "int32" or not groups or shape[1] % groups or scale.shape[0] != shape[0]:
        raise ValueError(
            f"{name}{packed.PACKED} in {words.file} is {words.dtype} {list(words.shape)} with scales "
            f"{list(scale.shape)}; expected int32 words of 4 or 8 bits and scales by group, for a weight {list(shape)}"
        )
    quant_type = QuantType(bits, shape[1] // groups).over(shape[1])
    return TensorInfo(shape, f"int{bits}", words.file, quant_type)


def weight_files(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """The files that hold the weights of `folder`, all of them present.

    Raises:
        FileNotFoundError: no folder, no weights, or shards that the index names and the folder lacks.
        ValueError: an index that cannot be read.
    """
    check_folder(folder)
    if is_gguf(folder):
        return part_paths(folder)
    for name in WEIGHT_FILES:
        path = folder / name
        if not path.is_file():
            continue
        if path.suffix != ".json":
            return (path,)
        shards = sorted(set(_weight_map(path).values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} of the {len(shards)} files that {path} names are missing: {listed(missing)}; "
                "copy or download them too"
            )
        return tuple(folder / shard for shard in shards)
    raise FileNotFoundError(f"folder {folder} holds no weights; expected one of {', '.join(WEIGHT_FILES)}")


def is_gguf(path: pathlib.Path) -> bool:
    """Whether it is a GGUF file, which stands for a model folder."""
    return path.suffix == GGUF and path.is_file()


def check_folder(folder: pathlib.Path) -> None:
    """Refuses with FileNotFoundError what is neither a folder nor a GGUF file."""
    if is_gguf(folder):
        return
    if folder.is_file():
        raise FileNotFoundError(f"{folder} is a file; expected the model folder that holds it")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no model {'file' if folder.suffix == GGUF else 'folder'} {folder}")


def read_entries(folder: pathlib.Path) -> dict[str, Any]:
    """The `config.json` of a model folder, or what a GGUF file says in its place."""
    if is_gguf(folder):
        from eagle_jax.converters.gguf_config import config_entries

        return config_entries(folder)
    return read_json(folder / "config.json")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The object in a JSON file; one sentence if there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; expected a model folder with {path.name} in it")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); copy or download it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


def _weight_map(index: pathlib.Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map; expected a table from tensor names to file names")
    for name, file in weight_map.items():
        if not isinstance(file, str) or pathlib.PurePath(file).name != file:
            raise ValueError(f"{index} places tensor {name} in {file!r}; expected the name of a file beside it")
    return weight_map
