"""Sizes of the target, and how the recipe keeps parameters between its steps."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from eagle_jax.config import LlamaConfig, Rope

TARGET = LlamaConfig(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    max_position_embeddings=1024,
    rms_norm_eps=1e-5,
    rope=Rope(theta=10000.0),
    tie_word_embeddings=True,
)
# A model to draft with: a tenth of the target.
DRAFT = dataclasses.replace(
    TARGET, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
SHAPES = {"target": TARGET, "draft": DRAFT}


def save(path: pathlib.Path, params: Any) -> None:
    """Writes parameters as one .npz, in one move, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished.npz")
    np.savez(unfinished, **{name: np.asarray(value) for name, value in flatten_dict(params, sep="/").items()})
    unfinished.replace(path)


def load(path: pathlib.Path) -> Any:
    """Reads what `save` wrote."""
    with np.load(path) as stored:
        return unflatten_dict({name: stored[name] for name in stored.files}, sep="/")
