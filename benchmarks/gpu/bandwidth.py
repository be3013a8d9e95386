"""How many bytes a second the device copies, and how many a pass reads."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.models.quant import QuantArray, flat
from gpu.scale import Scale


def streamed(params: Mapping[str, Any]) -> float:
    """Bytes that one pass reads: all weights but the embedding, of which it takes a row."""
    return sum(_held(leaf) for path, leaf in flat(params) if not path.startswith("embed_tokens/"))


def _held(leaf: Any) -> float:
    if isinstance(leaf, QuantArray):
        return leaf.size * leaf.bits / 8 + leaf.scales.nbytes
    return leaf.nbytes


def copy_bandwidth(scale: Scale) -> dict[str, float]:
    """Bytes a second, read and written ones counted, of copying a large array in two ways."""
    array = jnp.arange(scale.copied // 4, dtype=jnp.float32)
    found = {}
    for name, program in {"copy": jax.jit(jnp.copy), "x + 1": jax.jit(lambda x: x + 1)}.items():
        jax.block_until_ready(program(array))
        best = float("inf")
        for _ in range(10):
            begun = time.perf_counter()
            jax.block_until_ready(program(array))
            best = min(best, time.perf_counter() - begun)
        found[name] = 2 * array.nbytes / best
    return found
