"""The draft vocabulary on disk.

    d2t [d] int64   offsets: draft token i stands for target token i + d2t[i]
    t2d [v] bool    whether a target token is in the draft vocabulary; redundant, may be absent

Draft tokens are in ascending order of their target tokens. A head that drafts every token has neither tensor.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from eagle_jax.converters.files import Weights
from eagle_jax.converters.heads.eagle_formats import D2T, T2D
from eagle_jax.converters.tensor_file import TensorInfo


def read_vocabulary(weights: Weights, draft_vocab_size: int, vocab_size: int) -> np.ndarray | None:
    """Returns target ids `[draft_vocab_size]` int64 of the draft tokens; None if the head drafts every token.

    Args:
        weights: a head's files.
        draft_vocab_size, vocab_size: sizes of the head's and of the target's vocabulary.

    Raises:
        ValueError: `d2t` is missing although it is needed, has a wrong shape, is out of range or not ascending, or
            disagrees with `t2d`.
    """
    info = weights.info
    if D2T not in info:
        if draft_vocab_size != vocab_size:
            raise ValueError(
                f"{weights.folder} lacks tensor {D2T}: which {draft_vocab_size} of the {vocab_size} tokens the head "
                "drafts is not known"
            )
        ids = np.arange(draft_vocab_size)
    else:
        _check(info, D2T, (draft_vocab_size,), ("int64", "int32"))
        offsets = weights.take(D2T).astype(np.int64)
        ids = np.arange(draft_vocab_size) + offsets
        _check_ids(ids, offsets, vocab_size)
    if T2D in info:
        _check(info, T2D, (vocab_size,), ("bool",))
        _check_agreement(np.flatnonzero(weights.take(T2D)), ids)
    return None if draft_vocab_size == vocab_size else ids


def mapping_tensors(ids: np.ndarray, vocab_size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of a draft vocabulary with their names on disk."""
    yield D2T, ids.astype(np.int64) - np.arange(len(ids))
    is_drafted = np.zeros(vocab_size, bool)
    is_drafted[ids] = True
    yield T2D, is_drafted


def _check(info: Mapping[str, TensorInfo], name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    entry = info[name]
    if entry.shape != shape:
        raise ValueError(f"tensor {name} in {entry.file} has shape {list(entry.shape)}; expected {list(shape)}")
    if entry.dtype not in dtypes:
        raise ValueError(f"tensor {name} in {entry.file} is {entry.dtype}; expected {dtypes[0]}")


def _check_ids(ids: np.ndarray, offsets: np.ndarray, vocab_size: int) -> None:
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if outside.size:
        i = outside[0]
        raise ValueError(
            f"{D2T}[{i}]={offsets[i]} makes draft token {i} stand for token {ids[i]}; expected 0 to "
            f"{vocab_size - 1}: the tensor holds offsets, target token minus draft token"
        )
    descents = np.flatnonzero(np.diff(ids) <= 0)
    if descents.size:
        i = descents[0]
        raise ValueError(
            f"{D2T} makes draft tokens {i} and {i + 1} stand for tokens {ids[i]} and {ids[i + 1]}; expected them "
            "in ascending order: the tensor holds offsets, target token minus draft token"
        )


def _check_agreement(mask_ids: np.ndarray, offset_ids: np.ndarray) -> None:
    differing = np.setxor1d(mask_ids, offset_ids)
    if differing.size:
        i = differing[0]
        with_token, without_token = (T2D, D2T) if i in mask_ids else (D2T, T2D)
        raise ValueError(
            f"{with_token} says that token {i} is drafted and {without_token} that it is not; expected them to agree"
        )
