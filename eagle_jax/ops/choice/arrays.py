"""Arrays for a recorded call: random numbers, with lengths and counts as in decoding."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.ops.packing import PackedWeight, Transposed, is_leaf
from eagle_jax.ops.quantized import QuantArray

SLOTS_PER_USED = 8  # an eighth of the cache positions are used


def arrays_for(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns arrays of these shapes; weights are unpacked."""
    rng = np.random.default_rng(0)
    slots = max((leaf.shape[2] for leaf in jax.tree.leaves(args) if len(leaf.shape) == 4), default=1)

    def to_array(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, PackedWeight | Transposed):
            leaf = jax.eval_shape(lambda: leaf.unpack())
        if isinstance(leaf, QuantArray):
            return _quantized(leaf, rng)
        return _array(jax.tree_util.keystr(path), leaf, slots, rng)

    return jax.tree_util.tree_map_with_path(to_array, args, is_leaf=is_leaf)


def _array(path: str, leaf: Any, slots: int, rng: np.random.Generator) -> jax.Array:
    shape, dtype = leaf.shape, leaf.dtype
    name = re.sub(r"[^a-z_]", "", path.rsplit(".", 1)[-1])
    if dtype == jnp.bool_:
        return jnp.ones(shape, bool)
    if jnp.issubdtype(dtype, jnp.integer):
        if name == "cache_rows":
            return jnp.arange(shape[0], dtype=dtype)
        value = (
            slots // SLOTS_PER_USED
            if name == "length"
            else max(slots // SLOTS_PER_USED - 128, 0)
            if name == "first"
            else 2**20
        )
        return jnp.full(shape, value, dtype)  # counts: no row is padding
    scale = 1 / np.sqrt(shape[-1]) if len(shape) == 2 and min(shape) > 1 else 1.0  # a matrix of weights, or rows
    return jnp.asarray(rng.standard_normal(shape, np.float32) * scale, dtype)


def _quantized(leaf: QuantArray, rng: np.random.Generator) -> QuantArray:
    """Returns a weight with codes over their whole range and values of typical magnitude."""
    bits = leaf.bits

    def codes(part: Any) -> jax.Array:
        if jnp.issubdtype(part.dtype, jnp.floating):
            return jnp.asarray(rng.standard_normal(part.shape), part.dtype)
        low = 0 if jnp.issubdtype(part.dtype, jnp.unsignedinteger) else -(2 ** (bits - 1)) + 1
        return jnp.asarray(rng.integers(low, low + 2**bits - 1, part.shape), part.dtype)

    size = 2.0 ** (1 - bits) / np.sqrt(leaf.shape[-1])
    minima = None if leaf.minima is None else jnp.full(leaf.minima.shape, -size, leaf.minima.dtype)
    order = None if leaf.order is None else jnp.arange(leaf.order.shape[-1], dtype=leaf.order.dtype)
    scales = jnp.full(leaf.scales.shape, size, leaf.scales.dtype)
    return dataclasses.replace(leaf, codes=codes(leaf.codes), scales=scales, minima=minima, order=order)
