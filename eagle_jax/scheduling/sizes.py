"""Sizes that programs are compiled for: rows of a batch, slots of a cache, tokens of a prompt chunk."""

import jax

from eagle_jax.loading.model import Model
from eagle_jax.sharding import DATA

CHUNK = 256  # prompt tokens that an accelerator reads per forward pass


def default_batch_size(model: Model) -> int:
    """Returns the default batch size: 8 on a CPU, else 32, for every part of a mesh's `data` axis."""
    parts = 1 if model.sharding is None else model.sharding.sizes[DATA]
    return parts * (8 if jax.default_backend() == "cpu" else 32)


def padded_batch_size(model: Model, requests: int) -> int:
    """Rounds a number of requests up to a power of two for every part of a mesh's `data` axis."""
    parts = 1 if model.sharding is None else model.sharding.sizes[DATA]
    return parts << (-(-requests // parts) - 1).bit_length()


def slots_for_tree(depth: int, prompt: int, tokens: int, chunk: int) -> int:
    """Returns the cache slots of a row for trees of this depth and prompts read in chunks of `chunk` tokens."""
    return bucket(max(tokens + depth + 1, -(-prompt // chunk) * chunk))


def bucket(slots: int) -> int:
    """Rounds slots up, so that few programs serve all lengths: to multiples of 128, or of half the power of two below;
    from 1024 on, where caches take more memory than programs, of an eighth of it.
    """
    below = 1 << (slots.bit_length() - 1)
    step = max(128, below // (2 if slots < 1024 else 8))
    return -(-slots // step) * step


def chunk_tokens() -> int:
    """Returns the number of prompt tokens per forward pass: 64 keep a CPU busy, accelerators need more."""
    return 64 if jax.default_backend() == "cpu" else CHUNK
