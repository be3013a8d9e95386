"""Reads PyTorch checkpoints without executing code in them."""

import pathlib
from typing import Any

import numpy as np

from eagle_jax.converters.errors import first_sentence
from eagle_jax.converters.tensor_file import TensorInfo


class TorchFile:
    """A `.bin` or `.pt` file by `torch.save`, memory-mapped if its format allows (PyTorch 1.6 or newer)."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._tensors = _load_pickle(path)
        self.info = {
            name: TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), path)
            for name, tensor in self._tensors.items()
        }

    def take(self, name: str) -> np.ndarray:
        return _array(self._tensors.pop(name))


def load_tensor(path: pathlib.Path) -> np.ndarray:
    """Returns the only tensor in a file by `torch.save`, which may be in a dictionary."""
    content = _load(path)
    import torch

    tensors = list(content.values()) if isinstance(content, dict) else [content]
    if len(tensors) != 1 or not isinstance(tensors[0], torch.Tensor):
        raise ValueError(f"{path} holds something other than one tensor; expected that alone")
    return _array(tensors[0])


def _array(tensor: Any) -> np.ndarray:
    import ml_dtypes
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return tensor.numpy()


def _load_pickle(path: pathlib.Path) -> dict[str, Any]:
    """Returns the named tensors of a file."""
    tensors = _load(path)
    import torch

    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ValueError(f"{path} holds something other than named tensors; expected a state dict")
    return dict(tensors)


def _load(path: pathlib.Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{path} is read through PyTorch: pip install 'eagle-jax[torch]'") from error
    import pickle

    # Weights only: nothing in the file may run. Files older than PyTorch 1.6 are no zip archives and cannot be mapped.
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is damaged, or holds more than plain tensors, which is not loaded") from error
    except (RuntimeError, EOFError, OSError) as error:
        reason = first_sentence(error) or type(error).__name__
        raise ValueError(f"{path} is not a whole PyTorch file ({reason}); copy or download it again") from error


def _is_zip(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"
