"""Packed quantized weights: panels of 16 to 64 outputs, codes and scales stored input by input."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num, UInt32

from eagle_jax.ops.cpu.panels import join, split
from eagle_jax.ops.cpu.product_kind import FLOAT_ROWS, TABLES, ProductKind
from eagle_jax.ops.packing import PackedWeight
from eagle_jax.ops.quantized import E4M3, INT, QuantArray, QuantType, dense
from eagle_jax.struct import pytree, static
from eagle_jax.workarounds import gather

LANES = 16  # elements of a vector
SCALE_DTYPES = (jnp.dtype(jnp.float32), jnp.dtype(jnp.float16))


@pytree
class QuantizedPanels(PackedWeight):
    """A packed `QuantArray`.

    Attributes:
        words: `[s, in bits / 32, w]`, unsigned codes packed as `quantized_arithmetic` says; outputs beyond those of the
            weight are zeros.
        scales: `[s, groups, w]`, times the factor of the products' kind; with minima `[s, groups, 2 w]`, 16 scales and
            16 minima in turns.
        order: as in `QuantArray`.
        shape, bits, dtype, levels: of the weight.
    """

    words: UInt32[Array, "s _ w"]
    scales: Float[Array, "s g _"]
    order: Int[Array, "i"] | None
    shape: tuple[int, ...] = static()
    bits: int = static()
    dtype: np.dtype = static()
    levels: str = static()

    is_quantized = True

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in jax.tree.leaves(self))

    @property
    def hidden_rows(self) -> int:
        """Fewer for 16-bit rows without AMX, since arithmetic is slower and the weights are at most half as large."""
        from eagle_jax.ops.cpu.backend import row_bits
        from eagle_jax.ops.cpu.code import has_amx

        return 8 if has_amx() or row_bits(self.bits) == 8 else 5

    @property
    def has_minima(self) -> bool:
        return self.scales.shape[2] > self.words.shape[2]

    def kind(self, row_bits: int) -> ProductKind:
        """Returns the kind of products with rows of this number of bits."""
        return _kind(self.bits, self.levels, self.has_minima, self.scales.dtype, row_bits)

    def unpack(self) -> QuantArray:
        return unpack(self)

    def rows(self, indices: Int[Array, "n"]) -> Float[Array, "n i"]:
        width = self.words.shape[2]
        panel, output = indices // width, indices % width
        by_lane = _as_bits(self.scales).reshape(*self.scales.shape[:2], width // LANES, -1, LANES)
        parts = by_lane[panel, :, output // LANES, :, output % LANES]
        codes = _codes(gather(self.words, panel, output), self)
        return dense(_array(self, codes, _as_floats(parts, self.scales.dtype)))


def fits(weight: QuantArray) -> bool:
    """Returns whether a weight can be packed: known levels, groups of a multiple of 16 inputs."""
    is_aligned = weight.size > 0 and (weight.shape[-1] // weight.scales.shape[-1]) % LANES == 0
    is_supported = weight.levels in (INT, E4M3, *TABLES) and weight.scales.dtype in SCALE_DTYPES
    single = weight.order is None or weight.order.ndim == 1
    return is_aligned and is_supported and single and (weight.minima is None or weight.levels == INT)


def kind_of(weight: QuantArray, row_bits: int) -> ProductKind:
    """Returns the kind of products of a weight that `fits`, packed, with rows of this number of bits."""
    return _kind(weight.bits, weight.levels, weight.minima is not None, weight.scales.dtype, row_bits)


@jax.jit  # operation by operation it would be copied several times
def pack(weight: QuantArray) -> QuantizedPanels:
    """Packs a weight that `fits`."""
    factor = kind_of(weight, 16).factor
    scales = weight.scales if factor == 1 else weight.scales.astype(jnp.float32) * factor
    parts = [split(part).swapaxes(1, 2) for part in (scales, weight.minima) if part is not None]
    by_lane = jnp.stack([part.reshape(*part.shape[:2], -1, LANES) for part in parts], axis=3)
    return QuantizedPanels(
        words=_words(split(_unsigned(weight)), weight.bits),
        scales=by_lane.reshape(*by_lane.shape[:2], -1),
        order=weight.order,
        shape=weight.shape,
        bits=weight.bits,
        dtype=weight.dtype,
        levels=weight.levels,
    )


@jax.jit
def unpack(panels: QuantizedPanels) -> QuantArray:
    """Unpacks a weight."""
    packed = panels.words.swapaxes(1, 2)
    codes = _codes(packed.reshape(-1, packed.shape[2]), panels).reshape(*packed.shape[:2], -1)
    by_lane = panels.scales.reshape(*panels.scales.shape[:2], packed.shape[1] // LANES, -1, LANES)
    parts = by_lane.transpose(0, 2, 4, 1, 3).reshape(*packed.shape[:2], -1)
    groups = panels.scales.shape[1]
    return _array(panels, join(codes, panels.shape), join(parts, panels.shape).reshape(*panels.shape[:-1], groups, -1))


def _kind(bits: int, levels: str, has_minima: bool, scales: np.dtype, row_bits: int) -> ProductKind:
    kind = ProductKind(bits, FLOAT_ROWS if levels == E4M3 else row_bits, levels, has_minima, scales.name)
    return kind if kind.factor == 1 else kind._replace(scale_dtype="float32")  # a factor makes them that


def _array(panels: QuantizedPanels, codes: Num[Array, "*o i"], parts: Float[Array, "*o g p"]) -> QuantArray:
    """Returns a weight, or some of its rows, by its codes and what its groups have."""
    factor, scales = panels.kind(16).factor, parts[..., 0]
    return QuantArray(
        codes=codes,
        scales=scales if factor == 1 else scales / factor,
        minima=parts[..., 1] if panels.has_minima else None,
        order=panels.order,
        bits=panels.bits,
        dtype=panels.dtype,
        levels=panels.levels,
    )


def _unsigned(weight: QuantArray) -> Num[Array, "*o i"]:
    """Returns codes as they are packed: bits of floats, indices, integers less the zero point."""
    if weight.levels == E4M3:
        return jax.lax.bitcast_convert_type(weight.codes, jnp.uint8)
    if weight.levels in TABLES or weight.minima is not None:
        return weight.codes
    return weight.codes.astype(jnp.int32) + 2 ** (weight.bits - 1)


def _first_bits(bits: int) -> UInt32[np.ndarray, "n"]:
    """Returns the first bit of each input in its word."""
    inputs = np.arange(32 // bits, dtype=np.uint32)
    return inputs // 2 * bits + inputs % 2 * 16


def _words(codes: Num[Array, "s w i"], bits: int) -> UInt32[Array, "s _ w"]:
    apart = codes.astype(jnp.uint32).reshape(*codes.shape[:2], -1, 32 // bits)
    return jnp.sum(apart << _first_bits(bits)[None, None, None], axis=-1, dtype=jnp.uint32).swapaxes(1, 2)


def _codes(words: UInt32[Array, "n _"], panels: QuantizedPanels) -> Num[Array, "n i"]:
    """Returns codes as a `QuantArray` has them."""
    apart = words[..., None] >> _first_bits(panels.bits)[None, None] & np.uint32(2**panels.bits - 1)
    codes = apart.reshape(len(words), -1)
    quant_type = QuantType(panels.bits, levels=panels.levels, has_minima=panels.has_minima)
    if panels.levels == E4M3:
        return jax.lax.bitcast_convert_type(codes.astype(jnp.uint8), quant_type.code_dtype)
    is_unsigned = panels.levels in TABLES or panels.has_minima
    return (codes.astype(jnp.int32) - (0 if is_unsigned else 2 ** (panels.bits - 1))).astype(quant_type.code_dtype)


def _as_bits(scales: Float[Array, "s g _"]) -> Array:
    """Returns float16 as integers, since XLA:CPU would convert a whole table before it gathers from it."""
    return jax.lax.bitcast_convert_type(scales, jnp.uint16) if scales.dtype == jnp.float16 else scales


def _as_floats(parts: Array, dtype: np.dtype) -> Float[Array, "..."]:
    return jax.lax.bitcast_convert_type(parts, jnp.float16) if dtype == jnp.float16 else parts
