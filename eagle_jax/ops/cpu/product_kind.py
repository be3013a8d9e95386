"""Kinds of products with packed quantized weights; each has machine code of its own, compiled when it is needed."""

from typing import NamedTuple

from eagle_jax.ops.quantized import E4M3, INT, LEVELS

# Tables of levels that are whole numbers times a factor.
TABLES: dict[str, float] = {"e2m1": 0.5, "iq4_nl": 1.0}
FLOAT_ROWS = 32  # bits of the rows that are multiplied with 8-bit floats: they are not quantized
FLOAT8_FACTOR = 256.0  # an e4m3 with its bits in a float16 is so much smaller: its exponent's bias is 8 less


class ProductKind(NamedTuple):
    """The properties that a product's code depends on.

    Attributes:
        bits: number of bits of a weight's code, 8 or 4.
        x_bits: number of bits of an element of a row: 16, 8, or `FLOAT_ROWS` for floats.
        levels: see `ops.quantized.QuantType`.
        has_minima: whether groups have minima; integers are unsigned then.
        scale_dtype: dtype of scales and minima, "float32" or "float16".
    """

    bits: int
    x_bits: int
    levels: str = INT
    has_minima: bool = False
    scale_dtype: str = "float32"

    @property
    def name(self) -> str:
        """A name for its code."""
        weight = f"int{self.bits}" if self.levels == INT else self.levels
        row = "float32" if self.x_bits == FLOAT_ROWS else f"int{self.x_bits}"
        return f"{weight}{'_minima' * self.has_minima}{'_half' * (self.scale_dtype == 'float16')}_by_{row}"

    @property
    def zero_point(self) -> int:
        """Number that is subtracted from each unsigned code."""
        return 0 if self.has_minima or self.levels == E4M3 else 128 if self.levels in TABLES else 2 ** (self.bits - 1)

    @property
    def factor(self) -> float:
        """Factor of the scales of a packed weight."""
        return FLOAT8_FACTOR if self.levels == E4M3 else TABLES.get(self.levels, 1.0)

    @property
    def table(self) -> list[int]:
        """The levels of a kind in `TABLES` as unsigned whole numbers."""
        return [round(level / self.factor) + self.zero_point for level in LEVELS[self.levels]]

    @property
    def scale_parts(self) -> int:
        """Numbers of a group: a scale, and a minimum if there are minima."""
        return 1 + self.has_minima
