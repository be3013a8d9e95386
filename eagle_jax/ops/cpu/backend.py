"""The operations of the CPU backend and the arguments that they support.

The first call imports llvmlite and compiles the code.
"""

import functools
import logging
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.ops.cpu import panels, quantized_panels
from eagle_jax.ops.cpu.panels import Panels
from eagle_jax.ops.cpu.product_kind import ProductKind
from eagle_jax.ops.cpu.quantized_panels import QuantizedPanels
from eagle_jax.ops.dispatch import ACTIVATIONS, is_first
from eagle_jax.ops.packing import PackedWeight
from eagle_jax.ops.quantized import QuantArray
from eagle_jax.ops.types import KV, Affine, AttentionInputs, AttentionWeights, CachedKV, MLPWeights
from eagle_jax.sharding.tracing import is_sharded

ROWS = ("int16", "int8")  # values of `ACTIVATIONS`, which is read when a program is traced
LANES = 16  # `code.LANES`, without importing llvmlite
HEAD_MULTIPLE, MAX_HEAD = 2 * LANES, 256  # head sizes are multiples of the one, up to the other

log = logging.getLogger("eagle_jax.ops")
F32 = jnp.dtype(jnp.float32)


def refusal(weight: QuantArray | QuantizedPanels | None = None) -> str | None:
    """Returns why the code for float weights, or for a quantized one, cannot be used in this process; None if it can.

    Raises:
        ValueError: `EAGLE_JAX_ACTIVATIONS` has an unknown value.
    """
    _activations()  # an unknown value is refused when a model is loaded
    if jax.default_backend() != "cpu":
        return "it is for CPUs"
    error = _build_error()
    return error if error or weight is None else _build_error(_kind(weight))


def pack(weight: Array | QuantArray) -> PackedWeight | None:
    """Returns the packed weight; None if XLA multiplies with it."""
    if isinstance(weight, QuantArray):
        if not quantized_panels.fits(weight) or refusal(weight) is not None:
            return None
        return quantized_panels.pack(weight)
    return panels.pack(weight) if panels.fits(weight) and refusal() is None else None


def linear(rows: Float[Array, "r i"], weight: Any, num_valid: Int[Array, ""]) -> Float[Array, "r ..."]:
    """Computes products with packed weights; the result of a row does not depend on other rows."""
    if not isinstance(weight, Panels | QuantizedPanels):
        raise NotImplementedError("the weight is not packed")
    _check(weight if isinstance(weight, QuantizedPanels) else None)
    outputs = weight.size // weight.shape[-1]
    if isinstance(weight, QuantizedPanels):
        from eagle_jax.ops.cpu import quantized_products

        rows = (rows if weight.order is None else rows[:, weight.order]).astype(jnp.float32)
        y = quantized_products.product(rows, weight.words, weight.scales, _kind(weight), num_valid)
    else:
        from eagle_jax.ops.cpu import float_products

        y = float_products.product(rows.astype(weight.dtype), weight.data, num_valid)
    return y[:, :outputs].reshape(-1, *weight.shape[:-1])


def rms_norm(x: Float[Array, "r h"], scale: Float[Array, "h"], *, eps: float) -> Float[Array, "r h"]:
    """Norms of float32 rows whose length is a multiple of 16."""
    if x.dtype != F32 or scale.dtype != F32 or x.shape[1] % LANES:
        raise NotImplementedError(f"it computes in float32, rows of a multiple of {LANES} numbers")
    _check()
    from eagle_jax.ops.cpu import norms

    return norms.rms_norm(x, scale, eps)


def tree_attention(call: AttentionCall) -> Float[Array, "b k r c"]:
    """Computes attention in float32."""
    if call.sinks is not None:
        raise NotImplementedError("sinks are not supported")
    _check()
    from eagle_jax.ops.cpu import attention

    return attention.attend(call)


def attention_block(
    residual: Float[Array, "b n h"],
    x: Float[Array, "b n i"],
    weights: AttentionWeights,
    inputs: AttentionInputs,
    prefix: CachedKV,
    draft_kv: KV,
    *,
    scale: float,
    softcap: float | None,
) -> tuple[Float[Array, "b n h"], KV]:
    """Computes the block in one operation, for packed weights without biases and one norm, before the projections."""
    if softcap is not None or inputs.first is not None or not is_first("cpu", "tree_attention"):
        raise NotImplementedError("it has no softcap and no sliding window, and its own tree_attention")
    if weights.q_norm is not None or weights.post_norm is not None:
        raise NotImplementedError("it has one norm")
    if not weights.is_plain or inputs.query_scale is not None:
        raise NotImplementedError("sinks, interleaved rotations and multipliers are not supported")
    qkv, o = _panels(weights.qkv, weights.o)
    norm = weights.norm
    _fits_rows(residual, x, *inputs.cos_sin, *draft_kv, *prefix)
    if norm is not None and norm.plus_one:
        raise NotImplementedError("it multiplies with the scale of a norm as it is")
    if not _fits_attention(residual.shape, x.shape, qkv, o, inputs, prefix, draft_kv):
        raise NotImplementedError(f"heads are multiples of {HEAD_MULTIPLE} up to {MAX_HEAD}, inputs of {LANES}")
    _check()
    from eagle_jax.ops.cpu import attention_block as compiled
    from eagle_jax.ops.cpu.arguments import AttentionArguments, PackedAttention, cache_rows, spans

    factor = jnp.zeros(0) if norm is None else norm.scale.astype(jnp.float32)
    cached = prefix, inputs.length, cache_rows(inputs.cache_rows, len(inputs.length)), spans(inputs, x.shape[1])
    arguments = AttentionArguments(inputs.cos_sin, draft_kv, inputs.visible, *cached, inputs.num_valid)
    eps = 0.0 if norm is None else norm.eps
    packed = PackedAttention(factor, qkv.data, o.data)
    return compiled.attention_block(residual, x, eps, packed, arguments, scale)


def _fits_attention(
    residual: tuple[int, ...],
    x: tuple[int, ...],
    qkv: Panels,
    o: Panels,
    inputs: AttentionInputs,
    prefix: CachedKV,
    draft_kv: KV,
) -> bool:
    (batch, nodes, size), (_, heads, slots, head_dim) = x, prefix[0].shape
    fresh, half = draft_kv[0].shape[2] + nodes, (batch, nodes, head_dim // 2)
    queries = o.shape[-1] // head_dim // heads
    shapes = (qkv.shape, o.shape, inputs.visible.shape, *(part.shape for part in inputs.cos_sin))
    expected = (heads, queries + 2, head_dim, size), (residual[2], heads * queries * head_dim), (batch, nodes, fresh)
    is_aligned = head_dim % HEAD_MULTIPLE == 0 and head_dim <= MAX_HEAD and size % LANES == 0
    return slots > 0 and is_aligned and shapes == (*expected, half, half)


def mlp_block(x: Float[Array, "b n h"], weights: MLPWeights, num_valid: Int[Array, ""]) -> Float[Array, "b n h"]:
    """Computes the block in one operation, for SiLU, packed weights without biases and one norm, before the MLP."""
    norm = weights.norm
    if weights.gelu or weights.post_norm is not None or norm is None or norm.plus_one:
        raise NotImplementedError("it has SiLU and one norm")
    if weights.multiplier != 1:
        raise NotImplementedError("it adds to the residual as it is")
    gate_up, down = _panels(weights.gate_up, weights.down)
    inner, size = down.shape[1], x.shape[2]
    _fits_rows(x)
    # a panel may not hold outputs of both gate and up
    if inner % gate_up.width or gate_up.shape != (2, inner, size) or down.shape[0] != size or size % LANES:
        raise NotImplementedError("panels do not end where the gate does")
    _check()
    from eagle_jax.ops.cpu import mlp_block as compiled
    from eagle_jax.ops.cpu.arguments import PackedMLP

    packed = PackedMLP(norm.scale.astype(jnp.float32), gate_up.data, down.data)
    return compiled.mlp_block(x.reshape(-1, size), norm.eps, packed, inner, num_valid).reshape(x.shape)


def top_k(
    values: Float[Array, "r v"], *, count: int, logit_scale: float | None
) -> tuple[Float[Array, "r k"], Int[Array, "r k"]]:
    """Computes the top k in float32."""
    if values.dtype != F32 or 0 in values.shape or (logit_scale is not None and logit_scale <= 0):
        raise NotImplementedError("it ranks float32")
    _check()
    from eagle_jax.ops.cpu import ranking

    return ranking.top_k(values, count, logit_scale or 0.0)


def argmax(values: Float[Array, "*rows v"]) -> Int[Array, "*rows"]:
    """Computes the argmax in float32."""
    *rows, size = values.shape
    return top_k(values.reshape(math.prod(rows), size), count=1, logit_scale=None)[1].reshape(rows)


def row_bits(bits: int) -> int:
    """Returns how many bits activations are rounded to, 16 or 8, before a product with weights of `bits` bits.

    8 with weights of 4 bits, whose own rounding is far coarser, and 16 with those of 8, unless `EAGLE_JAX_ACTIVATIONS`
    is set; always 16 on a CPU without products of bytes: ARM without dot products.
    """
    from eagle_jax.ops.cpu.quantized_arithmetic import has_byte_products

    setting = _activations()
    if setting == "int8" and not has_byte_products():
        _warn_of_bytes()
    dtype = setting or ("int8" if bits == 4 else "int16")
    return 8 if dtype == "int8" and has_byte_products() else 16


@functools.cache
def _warn_of_bytes() -> None:
    log.warning("rows are rounded to 16 bits, not to the 8 of %s: this CPU has no products of bytes", ACTIVATIONS)


def _activations() -> str | None:
    value = os.environ.get(ACTIVATIONS) or None
    if value is not None and value not in ROWS:
        raise ValueError(f'{ACTIVATIONS}={value!r} is not known; expected "{ROWS[0]}" or "{ROWS[1]}"')
    return value


def _panels(*maps: Affine | tuple[Affine, ...]) -> list[Panels]:
    """Returns the packed weights of linear maps, if they have no padding, no biases and one dtype."""
    plain = [part.weight for part in maps if isinstance(part, Affine) and part.bias is None]  # else several maps
    unpadded = [weight for weight in plain if isinstance(weight, Panels) and weight.is_whole]
    if len(unpadded) < len(maps) or len({weight.dtype for weight in unpadded}) > 1:
        raise NotImplementedError("the weights are not whole panels of one dtype, without biases")
    return unpadded


def _fits_rows(*parts: Array) -> None:
    if {part.dtype for part in parts} != {F32}:
        raise NotImplementedError("it computes in float32")


def _kind(weight: QuantArray | QuantizedPanels) -> ProductKind:
    """Returns the kind of a quantized weight's products; once the code for float weights was compiled."""
    bits = row_bits(weight.bits)
    return weight.kind(bits) if isinstance(weight, QuantizedPanels) else quantized_panels.kind_of(weight, bits)


def _check(weight: QuantizedPanels | None = None) -> None:
    """Compiles the code.

    Raises:
        NotImplementedError: it cannot be used.
    """
    if (reason := refusal(weight)) is not None:
        raise NotImplementedError(reason)
    if is_sharded():
        raise NotImplementedError("the program runs on several devices")


@functools.cache
def _build_error(part: ProductKind | None = None) -> str | None:
    """Returns why the code cannot be compiled here, which is logged once; None once XLA has it."""
    try:
        from eagle_jax.ops.cpu import library

        library.make(part)
    # an llvmlite that is too old lacks functions or arguments
    except (AttributeError, ImportError, NotImplementedError, OSError, RuntimeError, TypeError) as error:
        operations = "products and attention" if part is None else f"products of weights of {part.levels}"
        hint = '; pip install "eagle-jax[cpu]"' if isinstance(error, ImportError) else ""
        log.warning("%s are left to XLA, which takes longer: %s%s", operations, error, hint)
        return str(error)
    return None
