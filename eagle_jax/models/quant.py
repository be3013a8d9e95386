"""Weights rounded to 8 or 4 bits: small integers, and a scale for each output or for each group of its inputs.

    weight [out, in]   ~   levels [out, in]  *  scales [out, groups], each over in / groups inputs

Only weights are rounded; activations stay what they are, but that CPUs round rows too as they meet rounded weights
(`kernels.native.rounded`). The largest number of a group becomes the lowest level, -128
or -8, exactly: its scale takes that number's sign. Against scales that map it to +7 or -7 this leaves a tenth less
error at 4 bits.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.struct import pytree, static

Params = dict[str, Any]


@pytree
class QuantArray:
    """A rounded weight in the place of a float one. Its axes may be moved, split and stacked as the weight's may.

    Attributes:
        levels: integers, of the weight's shape. Those of 4 bits take half a byte, but a whole one on CPU, where XLA
            does not multiply half bytes quickly; in `strips` they take half a byte there too.
        scales: of the weight's shape, but along the input axis as long as there are groups.
        bits: 8 or 4.
        dtype: what it is multiplied in; what it was rounded from.
    """

    levels: Int[Array, "..."]
    scales: Float[Array, "..."]
    bits: int = static()
    dtype: np.dtype = static()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.levels.shape

    @property
    def ndim(self) -> int:
        return self.levels.ndim

    @property
    def size(self) -> int:
        return self.levels.size

    @property
    def rounding(self) -> "Rounding":
        """Of a weight as stored, `[.., in]`."""
        return Rounding(self.bits, self.shape[-1] // self.scales.shape[-1]).over(self.shape[-1])


@dataclasses.dataclass(frozen=True)
class Rounding:
    """What a matrix is rounded to: `bits`, with a scale for each `group` of inputs, or for all of them (None)."""

    bits: int
    group: int | None = None

    def groups(self, inputs: int) -> int:
        """Scales of each output."""
        return 1 if self.group is None else inputs // self.group

    def over(self, inputs: int) -> "Rounding":
        """The same, where a group of all inputs is called none."""
        return Rounding(self.bits) if self.group == inputs else self


ROUNDINGS: Mapping[str, Rounding | None] = {
    "int8": Rounding(8),
    "int4": Rounding(4, 32),
    "int4-128": Rounding(4, 128),
    "none": None,
}
DRAFTING = "draft:"  # before a scheme: for the drafting models alone
# Parameters that are matrices, in targets and heads. Embeddings and norms have other names. A router is small, and
# what it gets wrong no expert makes good.
_MATRIX = re.compile(r"(?<!mlp/gate)/weight$|/experts/(gate|up|down)$")
_OUTPUT = re.compile(r"(^|/)lm_head/weight$")


@dataclasses.dataclass(frozen=True)
class Scheme:
    """What a model is rounded to.

    Attributes:
        layers: its matrices but the last; None leaves them.
        output: the output matrix, where it is no tied embedding; None leaves it.
    """

    layers: Rounding | None
    output: Rounding | None

    def of(self, path: str) -> Rounding | None:
        """What the parameter at `path` is rounded to; None for one that stays."""
        if _OUTPUT.search(path):
            return self.output
        return self.layers if _MATRIX.search(path) else None

    def check(self, params: Params) -> None:
        """Refuses a model whose matrices do not come apart into groups.

        Args:
            params: as stored, arrays or their shapes.

        Raises:
            ValueError: names the first matrix.
        """
        for path, leaf in flat(params):
            rounding = self.of(path)
            if rounding is not None and rounding.group is not None and leaf.shape[-1] % rounding.group:
                smaller = ", or to int4, whose groups are of 32" if leaf.shape[-1] % 32 == 0 else ""
                raise ValueError(
                    f"groups of {rounding.group} do not divide the {leaf.shape[-1]} inputs of {path}; quantise to "
                    f"int8, which has no groups{smaller}"
                )


def scheme_of(text: Any) -> Scheme | None:
    """What was asked for as `quantize`: "int8", "int4" (groups of 32), "int4-128", or None.

    After a slash may stand what the output matrix becomes, int8 without one: "int4/int4", "int8/none".

    Raises:
        ValueError: anything else.
    """
    if text is None or isinstance(text, Scheme):
        return text
    layers, slash, output = text.partition("/") if isinstance(text, str) else ("", "", "")
    output = output if slash else "int8"
    if layers not in ROUNDINGS or output not in ROUNDINGS or (layers == "none" and (not slash or output == "none")):
        raise ValueError(
            f'quantize={text!r} is not known; expected "int8", "int4" (groups of 32) or "int4-128", and after a slash, '
            f'if you like, what the output matrix becomes: "int4/int8", which is the default, "int4/int4", "int4/none"'
            '; "draft:" in front rounds what drafts alone'
        )
    return Scheme(ROUNDINGS[layers], ROUNDINGS[output])


def schemes_of(text: Any) -> tuple[Scheme | None, Scheme | None]:
    """What target and drafting models are rounded to: both to `scheme_of(text)`, or behind "draft:" the latter alone.

    Raises:
        ValueError: as `scheme_of` does.
    """
    if isinstance(text, str) and text.startswith(DRAFTING):
        return None, scheme_of(text.removeprefix(DRAFTING))
    scheme = scheme_of(text)
    return scheme, scheme


def is_matrix(path: str) -> bool:
    """Whether the parameter is one that rows are multiplied with, and so may be rounded."""
    return path.endswith("/weight") or _MATRIX.search(path) is not None


def level_dtype(bits: int) -> np.dtype:
    """What levels are kept in on this platform."""
    return np.dtype(jnp.int8 if bits == 8 or jax.default_backend() == "cpu" else jnp.int4)


def quantise(weight: Float[Array, "*o i"], rounding: Rounding, dtype: DTypeLike) -> QuantArray:
    """Rounds a weight to the nearest levels, ties to even.

    Args:
        rounding: its group divides the inputs.
        dtype: what the result is multiplied in.
    """
    levels, scales = _rounded(weight, rounding, level_dtype(rounding.bits))
    return QuantArray(levels=levels, scales=scales, bits=rounding.bits, dtype=np.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _rounded(
    weight: Float[Array, "*o i"], rounding: Rounding, kept: np.dtype
) -> tuple[Int[Array, "*o i"], Float[Array, "*o g"]]:
    """Levels and scales."""
    lowest = -(2 ** (rounding.bits - 1))
    parts = weight.astype(jnp.float32).reshape(*weight.shape[:-1], rounding.groups(weight.shape[-1]), -1)
    highest, deepest = jnp.max(parts, axis=-1, keepdims=True), jnp.min(parts, axis=-1, keepdims=True)
    scales = jnp.where(highest > -deepest, highest, deepest) / lowest
    scales = jnp.where(scales == 0, 1.0, scales)
    levels = jnp.clip(jnp.round(parts / scales), lowest, -lowest - 1).reshape(weight.shape)
    return levels.astype(kept), jnp.squeeze(scales, -1)


def quantise_params(params: Params, scheme: Scheme, above: str = "") -> Params:
    """The same model with rounded matrices; `params`, as stored, is emptied on the way: no weight is held twice."""
    rounded: Params = {}
    for name in list(params):
        leaf, path = params.pop(name), f"{above}{name}"
        if isinstance(leaf, dict):
            rounded[name] = quantise_params(leaf, scheme, f"{path}/")
            continue
        rounding = scheme.of(path)
        rounded[name] = leaf if rounding is None else quantise(leaf, rounding, leaf.dtype)
    return rounded


def dense(weight: Array | QuantArray) -> Array:
    """The numbers that a rounded weight stands for, in its dtype; a float weight as it is."""
    if not isinstance(weight, QuantArray):
        return weight
    apart, alone = [], []
    for size, groups in zip(weight.shape, weight.scales.shape, strict=True):
        apart += [size] if size == groups else [groups, size // groups]
        alone += [size] if size == groups else [groups, 1]
    levels = weight.levels.astype(weight.scales.dtype).reshape(apart)
    return (levels * weight.scales.reshape(alone)).reshape(weight.shape).astype(weight.dtype)


def dense_params(params: Params) -> Params:
    """The same model in floats."""
    return jax.tree.map(dense, params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))


def is_quantised(params: Params) -> bool:
    """Whether any weight is rounded."""
    return any(isinstance(leaf, QuantArray) for _, leaf in flat(params))


def flat(params: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every parameter with its path, such as `layers_0/self_attn/o_proj/weight`; a rounded one is one parameter."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value
