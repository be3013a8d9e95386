"""Sizes that programs are compiled for: rows of a batch, slots of a cache, tokens of a prompt chunk."""

import jax

from eagle_jax.loading.model import Model
from eagle_jax.sharding import DATA

CHUNK = 256  # prompt tokens that an accelerator reads per forward pass


def rows_of(model: Model) -> int:
    """Returns the default number of answers decoded together: 8 on a CPU, else 32, on every part of a mesh's `data`
    axis.
    """
    parts = 1 if model.sharding is None else model.sharding.sizes[DATA]
    return parts * (8 if jax.default_backend() == "cpu" else 32)


def rows_for(model: Model, requests: int) -> int:
    """Returns the number of rows of a batch for this number of requests: a power of two on every part of the `data`
    axis.
    """
    groups = 1 if model.sharding is None else model.sharding.sizes[DATA]
    return groups << (-(-requests // groups) - 1).bit_length()


def slots_for_tree(depth: int, prompt: int, tokens: int, chunk: int) -> int:
    """Returns `slots_to_hold` with trees of a depth, with prompts that are read in chunks of `chunk` tokens."""
    return bucket(max(tokens + depth + 1, -(-prompt // chunk) * chunk))


def bucket(slots: int) -> int:
    """Slots rounded up so that few programs serve all lengths: to 128, or half of the power of two below; from 1024 on,
    where caches weigh more than programs, to an eighth of it.
    """
    below = 1 << (slots.bit_length() - 1)
    step = max(128, below // (2 if slots < 1024 else 8))
    return -(-slots // step) * step


def chunk_tokens() -> int:
    """Returns the number of prompt tokens read per pass: a CPU is busy with 64, an accelerator wants more for its
    weights' traffic.
    """
    return 64 if jax.default_backend() == "cpu" else CHUNK
