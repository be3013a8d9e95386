"""Random quantized weights of every kind that files have, some of which nothing here quantizes to."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from eagle_jax.ops.quantized import E4M3, INT, QuantArray, QuantType

# What files of GGUF, AWQ, GPTQ, FP8, MXFP4 and compressed-tensors have; with float16 scales where they have those.
PUBLISHED = {
    "Q4_1": (QuantType(4, 32, has_minima=True), "float16"),
    "Q8_0": (QuantType(8, 32), "float16"),
    "Q4_K": (QuantType(4, 32, has_minima=True), "float32"),
    "Q5_K": (QuantType(8, 32, has_minima=True), "float32"),
    "Q6_K": (QuantType(8, 16), "float32"),
    "IQ4_NL": (QuantType(4, 32, "iq4_nl"), "float16"),
    "MXFP4": (QuantType(4, 32, "e2m1"), "float32"),
    "AWQ": (QuantType(4, 128, has_minima=True), "float32"),
    "GPTQ": (QuantType(4, 128, is_ordered=True), "float16"),
    "FP8": (QuantType(8, 128, E4M3), "float32"),
    "FP8, a scale for each output": (QuantType(8, None, E4M3), "float32"),
    "int8, asymmetric": (QuantType(8, None, has_minima=True), "float32"),
}


def random_weight(
    name: str, *shape: int, seed: int = 0, dtype: str = "float32", stacked: bool = False, size: float = 1.0
) -> QuantArray:
    """A weight `[.., in]` of one of these kinds, about as large as `size`; `stacked` weights have an order each."""
    quant_type, scale_dtype = PUBLISHED[name]
    rng, grid = np.random.default_rng(seed), (*shape[:-1], quant_type.groups(shape[-1]))
    scales, minima, largest = rng.uniform(0.5, 1.5, grid), None, 2 ** (quant_type.bits - 1)
    if quant_type.levels == E4M3:
        codes = rng.standard_normal(shape).astype(np.float32)
        codes[..., 0], codes[..., 1] = 2.0**-9, -448.0  # the smallest, and the largest
        largest = 1
    elif quant_type.levels != INT:
        codes, largest = rng.integers(0, 16, shape), {"e2m1": 4, "iq4_nl": 100}[quant_type.levels]
    else:
        codes = rng.integers(0, 2**quant_type.bits, shape) - (0 if quant_type.has_minima else largest)
    scales *= size / largest
    if quant_type.has_minima:
        minima = jnp.asarray(-largest * scales * rng.uniform(0.9, 1.1, grid), scale_dtype)
    by_seed = np.random.default_rng(seed)  # of one seed whatever the outputs
    orders = [by_seed.permutation(shape[-1]).astype(np.int32) for _ in range(shape[0] if stacked else 1)]
    return QuantArray(
        codes=jnp.asarray(codes.astype(quant_type.code_dtype)),
        scales=jnp.asarray(scales, scale_dtype),
        bits=quant_type.bits,
        dtype=np.dtype(dtype),
        minima=minima,
        order=jnp.asarray(np.stack(orders) if stacked else orders[0]) if quant_type.is_ordered else None,
        levels=quant_type.levels,
    )


def dense_by_hand(weight: QuantArray) -> np.ndarray:
    """What a weight `[out, in]` stands for, number by number in float32."""
    from eagle_jax.ops.quantized import LEVELS

    codes, scales = np.asarray(weight.codes), np.asarray(weight.scales, np.float32)
    minima = None if weight.minima is None else np.asarray(weight.minima, np.float32)
    group, made = codes.shape[1] // scales.shape[1], np.zeros(codes.shape, np.float32)
    for (row, column), code in np.ndenumerate(codes):
        level = np.float32(LEVELS[weight.levels][code] if weight.levels in LEVELS else code)
        value = level * scales[row, column // group]
        if minima is not None:
            value = value + minima[row, column // group]
        made[row, column if weight.order is None else int(weight.order[column])] = value
    return made


def with_dtype(weight: QuantArray, dtype: str) -> QuantArray:
    """The same weight in a model of another dtype."""
    return dataclasses.replace(weight, dtype=np.dtype(jnp.dtype(dtype)))
