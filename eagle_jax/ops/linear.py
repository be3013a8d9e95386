"""Linear maps with float, quantized or packed weights."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.ops.dispatch import dispatch
from eagle_jax.ops.packing import PackedWeight, Transposed
from eagle_jax.ops.precision import precision
from eagle_jax.ops.quantized import QuantArray, dequantized, levels_of
from eagle_jax.ops.types import Affine
from eagle_jax.platform import is_gpu_without_bfloat16
from eagle_jax.sharding.tracing import is_sharded

# Columns that CPUs dequantize at a time: a sixteenth of all, within these bounds. XLA would hoist the dequantization of
# whole matrices out of the decoding loop and keep a float copy of the model. Blocks stay in the core's cache, which is
# also twice as fast: 2048 x 8192 on two cores (`benchmarks.kernels.ops products`).
MIN_BLOCK, MAX_BLOCK = 128, 512

# Numbers of rows for which a float32 matrix `[out, in]` is the left operand on CPUs, since XLA packs the right operand
# in each call: with 2048 x 8192, 4 rows take a third as long and 8 rows three tenths (`benchmarks.kernels.ops
# products`). Other numbers of rows are padded to the next of these, which is faster.
FEW_ROWS = (4, 8, 16, 32)

Weight = Array | QuantArray | PackedWeight | Transposed


def linear(
    x: Float[Array, "*rows i"],
    affine: Affine,
    *,
    num_valid: Int[Array, ""] | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "..."]:
    """Computes `x @ weight.T + bias`, accumulated in float32.

    Args:
        num_valid: number of leading rows, over all axes of `x` but the last, that are not padding; results of padding
            are finite and ignored. None is all.
        dtype: dtype of the result; None is that of `x`.
    """
    weight, bias = affine
    rows = x.reshape(-1, x.shape[-1])
    count = jnp.int32(rows.shape[0]) if num_valid is None else num_valid
    y = dispatch("linear", reference, rows, weight, count).reshape(*x.shape[:-1], *weight.shape[:-1])
    if bias is not None:
        y = y + bias.astype(jnp.float32).reshape((1,) * (y.ndim - bias.ndim) + bias.shape)
    return y.astype(x.dtype if dtype is None else dtype)


def matmul(x: Float[Array, "*rows i"], weight: Weight) -> Float[Array, "..."]:
    """Computes `x @ weight.T` in float32."""
    return linear(x, Affine(weight), dtype=jnp.float32)


def reference(rows: Float[Array, "r i"], weight: Weight, num_valid: Int[Array, ""]) -> Float[Array, "r ..."]:
    """Computes `rows @ weight.T` by XLA: multiplied in the weight's dtype, accumulated in float32."""
    del num_valid
    if isinstance(weight, PackedWeight):
        weight = weight.unpack()
    if isinstance(weight, Transposed):
        return _contract(rows, weight.data, 0)
    return _contract(rows, weight, weight.ndim - 1)


def _contract(rows: Float[Array, "r i"], weight: Array | QuantArray, axis: int) -> Float[Array, "r ..."]:
    """Computes the product over axis `axis` of the weight, the first or the last."""
    rows = rows.astype(weight.dtype)
    if not isinstance(weight, QuantArray):
        return _dot(rows, weight, axis)
    if weight.order is not None:
        rows, weight = rows[:, weight.order], dataclasses.replace(weight, order=None)
    if jax.default_backend() == "cpu" and axis == 0 and not is_sharded():
        return _by_blocks(rows, weight)
    return _quantized_dot(rows, weight, axis)


def _dot(rows: Float[Array, "r i"], weight: Array, axis: int) -> Float[Array, "..."]:
    is_single = rows.shape[0] == 1 and _is_slow_alone(weight.dtype)
    if is_single:
        rows = jnp.concatenate([rows, rows])
    if weight.dtype == jnp.float32 and axis == weight.ndim - 1 and jax.default_backend() == "cpu" and not is_sharded():
        return _as_stored_dot(rows, weight.reshape(-1, weight.shape[-1])).reshape(-1, *weight.shape[:-1])
    product = _accumulated(rows, weight, 1, axis)
    return product[:1] if is_single else product


def _is_slow_alone(dtype: DTypeLike) -> bool:
    """Returns whether XLA is faster with two rows than with one.

    On CPUs its fast path takes two bfloat16 rows or more. On GPUs before Ampere it writes a float32 copy of a float16
    matrix for a single row (`benchmarks.compile_only.colab`).
    """
    if dtype == jnp.bfloat16:
        return jax.default_backend() == "cpu"
    return dtype == jnp.float16 and is_gpu_without_bfloat16()


def _as_stored_dot(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    """Computes `rows @ weight.T` in float32 on CPU."""
    count = rows.shape[0]
    if 1 < count <= FEW_ROWS[-1]:
        return _weight_first(rows, weight)
    return _tall_dot(rows, weight) if weight.shape[0] > weight.shape[1] else _accumulated(rows, weight, 1, 1)


def _weight_first(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    """Computes `(weight @ rows.T).T`, padded to one of `FEW_ROWS`; barriers keep XLA from transposing it back."""
    count = rows.shape[0]
    padded = next(few for few in FEW_ROWS if few >= count)
    columns = jax.lax.optimization_barrier(jnp.pad(rows, ((0, padded - count), (0, 0))).T)
    return jax.lax.optimization_barrier(_accumulated(weight, columns, 1, 0)).T[:count]


def _accumulated(x: Float[Array, "..."], y: Float[Array, "..."], x_axis: int, y_axis: int) -> Float[Array, "..."]:
    return jax.lax.dot_general(
        x, y, (((x_axis,), (y_axis,)), ((), ())), precision=precision(y.dtype), preferred_element_type=jnp.float32
    )


@jax.custom_vjp
def _tall_dot(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    """Computes `rows @ weight.T` for more outputs than inputs; its gradient is computed as `[i, o]` and transposed.

    XLA:CPU takes a third longer to compute `[o, i]` from many rows (`benchmarks.kernels.ops gradients`). There is no
    forward-mode derivative.
    """
    return _accumulated(rows, weight, 1, 1)


def _tall_forward(rows: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _tall_dot(rows, weight), (rows, weight)


def _tall_backward(residuals: tuple[Array, Array], gradient: Float[Array, "r o"]) -> tuple[Array, Array]:
    rows, weight = residuals
    transposed = jax.lax.optimization_barrier(_accumulated(rows, gradient, 0, 0))  # or XLA moves the transpose into it
    return _accumulated(gradient, weight, 1, 0), transposed.T


_tall_dot.defvjp(_tall_forward, _tall_backward)


def _quantized_dot(rows: Float[Array, "r i"], weight: QuantArray, axis: int) -> Float[Array, "..."]:
    floats, scales = factors(weight, axis)
    product = _dot(rows, floats, axis)
    return product if scales is None else product * scales[None]


def factors(weight: Array | QuantArray, axis: int) -> tuple[Array, Array | None]:
    """Returns the matrix to multiply with, inputs in the order of the codes, and the scales of the product, if any.

    With one scale per output the levels are multiplied (exact in bfloat16, except NF4), and the product is scaled.
    """
    if not isinstance(weight, QuantArray):
        return weight, None
    if weight.scales.shape[axis] > 1 or weight.minima is not None or weight.levels == "nf4":
        return dequantized(weight), None
    return levels_of(weight).astype(weight.dtype), jnp.squeeze(weight.scales.astype(jnp.float32), axis)


def _by_blocks(rows: Float[Array, "r i"], weight: QuantArray) -> Float[Array, "..."]:
    """Computes the product block by block of the columns of a weight `[in, ..]`."""
    columns = jax.tree.map(lambda part: part.reshape(part.shape[0], -1), weight)
    width = columns.shape[1]
    block = min(max(width // 16 // MIN_BLOCK * MIN_BLOCK, MIN_BLOCK), MAX_BLOCK)

    def part(start: Array | int, size: int) -> Float[Array, "r o"]:
        block_columns = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis=1), columns)
        return _quantized_dot(rows, block_columns, 0)

    def add_block(i: Array, out: Float[Array, "r o"]) -> Float[Array, "r o"]:
        return jax.lax.dynamic_update_slice_in_dim(out, part(i * block, block), i * block, axis=1)

    num_full = width - width % block
    out = jnp.zeros((rows.shape[0], num_full), jnp.float32)
    if num_full:
        out = jax.lax.fori_loop(0, num_full // block, add_block, out)
    if num_full < width:
        out = jnp.concatenate([out, part(num_full, width - num_full)], axis=1)
    return out.reshape(rows.shape[0], *weight.shape[1:])
