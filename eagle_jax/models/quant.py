"""Which weights of a model are quantized, and to what."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from eagle_jax.ops.quantized import QuantArray, QuantType, dense, quantize

Params = dict[str, Any]


QUANT_TYPES: Mapping[str, QuantType | None] = {
    "int8": QuantType(8),
    "int4": QuantType(4, 32),
    "int4-128": QuantType(4, 128),
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

    layers: QuantType | None
    output: QuantType | None

    def of(self, path: str) -> QuantType | None:
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
            quant_type = self.of(path)
            if quant_type is not None and quant_type.group is not None and leaf.shape[-1] % quant_type.group:
                smaller = ", or to int4, whose groups are of 32" if leaf.shape[-1] % 32 == 0 else ""
                raise ValueError(
                    f"groups of {quant_type.group} do not divide the {leaf.shape[-1]} inputs of {path}; quantize to "
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
    if layers not in QUANT_TYPES or output not in QUANT_TYPES or (layers == "none" and (not slash or output == "none")):
        raise ValueError(
            f'quantize={text!r} is not known; expected "int8", "int4" (groups of 32) or "int4-128", and after a slash, '
            f'if you like, what the output matrix becomes: "int4/int8", which is the default, "int4/int4", "int4/none"'
            '; "draft:" in front rounds what drafts alone'
        )
    return Scheme(QUANT_TYPES[layers], QUANT_TYPES[output])


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


def quantize_params(params: Params, scheme: Scheme, above: str = "") -> Params:
    """The same model with rounded matrices; `params`, as stored, is emptied on the way: no weight is held twice."""
    rounded: Params = {}
    for name in list(params):
        leaf, path = params.pop(name), f"{above}{name}"
        if isinstance(leaf, dict):
            rounded[name] = quantize_params(leaf, scheme, f"{path}/")
            continue
        quant_type = scheme.of(path)
        rounded[name] = leaf if quant_type is None else quantize(leaf, quant_type, leaf.dtype)
    return rounded


def dense_params(params: Params) -> Params:
    """The same model in floats."""
    return jax.tree.map(dense, params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))


def is_quantized(params: Params) -> bool:
    """Whether any weight is rounded."""
    return any(isinstance(leaf, QuantArray) for _, leaf in flat(params))


def flat(params: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every parameter with its path, such as `layers_0/self_attn/o_proj/weight`; a rounded one is one parameter."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value
