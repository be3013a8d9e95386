"""How many bytes a second the device copies, and how many a pass reads."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.models.quant import flat
from eagle_jax.ops import Transposed
from eagle_jax.ops.quantized import QuantArray
from gpu.scale import Scale

COPIES = 8  # one after the other in one timing, so that waiting for the last of them is no part of the time


def streamed(params: Mapping[str, Any]) -> float:
    """Bytes that one pass reads: all weights but the embedding, of which it takes a row."""
    return sum(_held(leaf) for path, leaf in flat(params) if not path.startswith("embed_tokens/"))


def _held(leaf: Any) -> float:
    if isinstance(leaf, Transposed):
        return _held(leaf.data)
    if isinstance(leaf, QuantArray):
        return leaf.size * leaf.bits / 8 + leaf.scales.nbytes
    return leaf.nbytes


def copy_bandwidth(scale: Scale) -> dict[str, float]:
    """Bytes a second, read and written ones counted, of copying a large array in two ways."""
    array = jnp.arange(scale.copied // 4, dtype=jnp.float32)
    found = {}
    for name, program in {"copy": jax.jit(jnp.copy), "x + 1": jax.jit(lambda x: x + 1)}.items():
        jax.block_until_ready(program(array))
        best = min(_seconds(program, array) for _ in range(5))
        found[name] = 2 * COPIES * array.nbytes / best
    return found


def _seconds(program: Callable[[jax.Array], jax.Array], array: jax.Array) -> float:
    """Of copies of copies: calls of a program that is compiled already, which nothing can make one of."""
    begun = time.perf_counter()
    for _ in range(COPIES):
        array = program(array)
    jax.block_until_ready(array)
    return time.perf_counter() - begun
