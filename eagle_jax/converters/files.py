"""Reads the tensors of a model folder, one at a time: safetensors or PyTorch pickles, in one file or sharded."""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from eagle_jax.converters import packed
from eagle_jax.converters.dividing import WHOLE, Part
from eagle_jax.converters.errors import listed
from eagle_jax.converters.gguf.split import part_paths
from eagle_jax.converters.pickles import TorchFile
from eagle_jax.converters.quantized import RawTensors, group_weights, unpacking
from eagle_jax.converters.tensor_file import GGUF, TensorFile, TensorInfo

# The first file that exists is read. Published folders may hold both kinds; safetensors need no PyTorch.
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
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "I64": "int64",
        "I32": "int32",
        "I16": "int16",
        "I8": "int8",
        "U64": "uint64",
        "U32": "uint32",
        "U16": "uint16",
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
        info = self.info[name]
        return _map_float8(self.path, name, info) if info.dtype in _FLOAT8 else self._file.get_tensor(name)


# Dtypes that safetensors cannot return to numpy, which lacks them.
_FLOAT8 = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu}


def _map_float8(path: pathlib.Path, name: str, info: TensorInfo) -> np.ndarray:
    """Maps a float8 tensor of a safetensors file: the header's length, a JSON header, and all values."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(header))[name]["data_offsets"]
    octets = (
        np.memmap(path, np.uint8, "r", 8 + header + begin, (end - begin,)) if end > begin else np.zeros(0, np.uint8)
    )
    return np.asarray(octets).view(_FLOAT8[info.dtype]).reshape(info.shape)


# Prefixes of the text model in a multimodal model's files, and in a text model's own files.
_TEXT_PARTS = {"model.language_model.": "model.", "language_model.": ""}


class Weights:
    """All tensors of a model folder, or of a GGUF file.

    Attributes:
        folder: the model folder, or the GGUF file.
        files: the weight files in use.
        info: header of every tensor by name; the tensors of a quantized weight are one entry (`quantized`). Tensors of
            a multimodal model's text part have the names of a text model.
        optional: names of tensors without effect, which a model need not have.
        notes: sentences on statements of the folder that are not followed.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.files = weight_files(folder)
        self.info: dict[str, TensorInfo] = {}
        self._file_of: dict[str, TensorFile] = {}
        for path in self.files[:1] if is_gguf(folder) else self.files:  # the first part of a GGUF model lists them all
            file = open_file(path)
            for name, info in file.info.items():
                if name in self.info:
                    raise ValueError(f"tensor {name} is in both {self.info[name].file} and {path}")
                self.info[name] = info
                self._file_of[name] = file
        self._check_index()
        self._peeked: dict[str, np.ndarray] = {}
        grouped = group_weights(folder, RawTensors(self.info, self._peek))
        self.info, self._quantized = dict(grouped.info), grouped.weights
        self.optional, self.notes = grouped.optional, grouped.notes
        self._parts: dict[str, tuple[str, Part]] = {}
        self._undivided_info: dict[str, TensorInfo] = {}
        self._last_divided: tuple[str, Any] = ("", None)  # name and value
        for prefix, text_prefix in _TEXT_PARTS.items():
            for name in [name for name in self.info if name.startswith(prefix)]:
                self.divide(name, {f"{text_prefix}{name.removeprefix(prefix)}": WHOLE})

    @property
    def is_divided(self) -> bool:
        """Whether files have other names, or several parameters in one tensor."""
        return bool(self._undivided_info)

    def divide(self, name: str, parts: Mapping[str, Part]) -> None:
        """Replaces a tensor by its parts, as tensors with names; no effect on a divided tensor or a part of one."""
        is_part = name in self._parts and self._parts[name][1] != WHOLE
        if name in self._undivided_info or is_part:
            return
        undivided = self._undivided_info[name] = self.info.pop(name)
        self.info |= {part_name: part.info(undivided) for part_name, part in parts.items()}
        if name in self._parts:  # it has another name in the file
            name, _ = self._parts.pop(name)
        self._parts |= {part_name: (name, part) for part_name, part in parts.items()}

    def take(self, name: str) -> np.ndarray:
        """Returns the values of one tensor, a quantized weight's in float32. Each tensor can be taken once."""
        if name in self._parts:
            undivided, part = self._parts[name]
            quant_type = self._undivided_info[undivided].quant_type
            if quant_type is not None:
                return unpacking.dense(self.take_quantized(name), quant_type.levels)
            return self._take(undivided) if part is WHOLE else part.of(self._undivided(undivided, self._take))
        return self._take(name)

    def _take(self, name: str) -> np.ndarray:
        weight = self._quantized.get(name)
        if weight is None:
            return self._take_stored(name)
        assert weight.info.quant_type is not None
        return unpacking.dense(weight.read(self._take_stored), weight.info.quant_type.levels)

    def take_quantized(self, name: str) -> packed.QuantizedTensor:
        """Returns codes and scales of one quantized weight, which can be taken once."""
        info = self.info[name]
        if info.quant_type is None:
            raise ValueError(f"tensor {name} in {info.file} is {info.dtype}; expected a quantized weight")
        if name in self._parts:
            undivided, part = self._parts[name]
            if part is WHOLE:
                return self._take_quantized(undivided)
            return part.of_quantized(self._undivided(undivided, self._take_quantized))
        return self._take_quantized(name)

    def _undivided(self, name: str, take: Callable[[str], Any]) -> Any:
        """Returns a tensor with several parts; it is kept until a part of another tensor is taken."""
        if self._last_divided[0] != name:
            self._last_divided = "", None  # so that two are never in memory
            self._last_divided = name, take(name)
        return self._last_divided[1]

    def _take_quantized(self, name: str) -> packed.QuantizedTensor:
        if name in self._quantized:
            return self._quantized[name].read(self._take_stored)
        return self._file_of[name].take_quantized(name)  # type: ignore[attr-defined]

    def parts(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the tensors to write for one entry of `info`: itself, or the tensors of a quantized weight."""
        quant_type = self.info[name].quant_type
        if quant_type is None:
            yield name, self.take(name)
        else:
            yield from packed.tensors(name, self.take_quantized(name), quant_type.bits)

    def _take_stored(self, name: str) -> np.ndarray:
        """Returns a tensor as it is stored."""
        return self._peeked.pop(name) if name in self._peeked else self._file_of[name].take(name)

    def _peek(self, name: str) -> np.ndarray:
        """Returns a small tensor, which can be taken again."""
        if name not in self._peeked:
            self._peeked[name] = self._file_of[name].take(name)
        return self._peeked[name]

    def _check_index(self) -> None:
        index = next((p for p in map(self.folder.joinpath, WEIGHT_FILES) if p.exists()), None)
        if index is None or index.suffix != ".json":
            return
        for name, file in _weight_map(index).items():
            if name not in self.info or self.info[name].file.name != file:
                raise ValueError(f"{index} places tensor {name} in {file}, which does not hold it")


def open_file(path: pathlib.Path) -> TensorFile:
    """Opens one weight file; its tensors are returned as they are stored."""
    if path.suffix == GGUF:
        from eagle_jax.converters.gguf.tensors import GgufTensors

        return GgufTensors(path)
    return SafetensorsFile(path) if path.suffix == ".safetensors" else TorchFile(path)


def weight_files(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Returns the files that hold the weights of `folder`, all of them present.

    Raises:
        FileNotFoundError: the folder, its weights, or shards named in the index are missing.
        ValueError: the index cannot be read.
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
    """Returns whether `path` is a GGUF file, which is accepted in place of a model folder."""
    return path.suffix == GGUF and path.is_file()


def check_folder(folder: pathlib.Path) -> None:
    """Raises FileNotFoundError for a path that is neither a folder nor a GGUF file."""
    if is_gguf(folder):
        return
    if folder.is_file():
        raise FileNotFoundError(f"{folder} is a file; expected the model folder that holds it")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no model {'file' if folder.suffix == GGUF else 'folder'} {folder}")


def read_entries(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the `config.json` of a model folder, or the equivalent of a GGUF file's metadata."""
    if is_gguf(folder):
        from eagle_jax.converters.gguf.config import config_entries

        return config_entries(folder)
    return read_json(folder / "config.json")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file. Raises FileNotFoundError or ValueError if there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; expected a model folder with {path.name} in it")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also for a number with too many digits
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
            raise ValueError(
                f"{index} places tensor {name} in {file!r}; expected the name of a file in the same folder"
            )
    return weight_map
