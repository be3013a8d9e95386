"""What a batch asks for, as arrays, for tests that call the loop's programs themselves."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from eagle_jax.decoding.sampling import Settings, request_keys
from eagle_jax.loop.state import BatchParams


def settings_of(
    rows: int,
    temperature: ArrayLike = 0.0,
    *,
    top_k: ArrayLike = 0,
    top_p: ArrayLike = 1.0,
    min_p: ArrayLike = 0.0,
    seeds: Sequence[int] | None = None,
    key: Any = None,
) -> Settings:
    """How each row draws, by one value for all rows or one for each; without seeds and keys row i has the seed i."""

    def column(value: ArrayLike, dtype: type) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(value, dtype), (rows,))

    return Settings(
        temperature=column(temperature, jnp.float32),
        top_k=column(top_k, jnp.int32),
        top_p=column(top_p, jnp.float32),
        min_p=column(min_p, jnp.float32),
        key=request_keys(range(rows) if seeds is None else seeds, [0] * rows) if key is None else key,
    )


def params_of(
    lengths: Sequence[int], new: int, *, stop_ids: Sequence[int] = (-1,), processor: Any = None, **settings: Any
) -> BatchParams:
    """Requests with prompts of these lengths, for `new` tokens each; `settings` as for `settings_of`."""
    counts = np.asarray(lengths, np.int32)
    return BatchParams(
        settings=settings_of(len(counts), **settings),
        prompt_length=jnp.asarray(counts),
        limit=jnp.asarray(counts + np.int32(new)),
        stop_ids=np.tile(np.asarray(stop_ids, np.int32), (len(counts), 1)),
        processor=processor,
    )


def padded(prompts: Sequence[Sequence[int]], size: int) -> jax.Array:
    """Prompts in rows `[b size]`, zeros behind them."""
    tokens = np.zeros((len(prompts), size), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    return jnp.asarray(tokens)
