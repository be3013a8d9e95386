"""Which weights of a model are quantized, and to what; and what becomes of those that its files hold quantized."""

import collections
import dataclasses
import logging
import math
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
    "int4-asym": QuantType(4, 32, has_minima=True),
    "int4-128-asym": QuantType(4, 128, has_minima=True),
    "none": None,
}
DRAFTING = "draft:"  # before a scheme: for the drafting models alone
REQUANTIZE = "requantize:"  # before a scheme: for weights that files hold quantized, too
# Parameters that are matrices, in targets and heads; embeddings and norms have other names. Some stay floats: a router
# is small, and what it gets wrong no expert makes good; and so is what decides how much of a state is kept.
_MATRIX = re.compile(r"/weight$|/experts/(gate|up|down)$")
_STAY_FLOATS = re.compile(r"(mlp/gate|shared_gate|conv1d|in_proj_(a|b|ba))/weight$")
_OUTPUT = re.compile(r"(^|/)lm_head/weight$")
_TABLE = re.compile(r"(^|/)embed_tokens/embedding$")

log = logging.getLogger("eagle_jax.models")


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Quantization types for the parts of a model.

    Attributes:
        layers: its matrices but the last; None makes floats of them.
        output: the output matrix, where it is no tied embedding; None makes floats of it.
        requantizes: whether weights that files hold quantized are quantized a second time.
    """

    layers: QuantType | None
    output: QuantType | None
    requantizes: bool = False

    @property
    def is_floats(self) -> bool:
        """Whether the whole model is dequantized, embedding tables included."""
        return self.layers is None and self.output is None

    def of(self, path: str) -> QuantType | None:
        """Returns the type that the parameter at `path` is quantized to; None for floats, or for one that stays."""
        if _OUTPUT.search(path):
            return self.output
        return self.layers if is_matrix(path) and not _STAY_FLOATS.search(path) else None

    def applied(self, path: str, leaf: Any, dtype: Any) -> Any:
        """Returns the parameter at `path` as it is stored, quantized or dequantized."""
        quant_type = self.of(path)
        if quant_type is not None:
            return quantize(dense(leaf), quant_type, dtype)
        return dense(leaf) if self.is_floats or is_matrix(path) else leaf

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
    """Parses `quantize`: a name in `QUANT_TYPES`, or None, which keeps what files hold.

    After a slash stands the type of the output matrix, which is int8 otherwise: "int4/int4", "int8/none". "none" makes
    floats of a model that files hold quantized, and "requantize:" in front quantizes it a second time.

    Raises:
        ValueError: anything else.
    """
    if text is None or isinstance(text, Scheme):
        return text
    name = text.removeprefix(REQUANTIZE) if isinstance(text, str) else ""
    layers, slash, output = name.partition("/")
    if not slash:
        output = "none" if layers == "none" else "int8"
    scheme = (
        Scheme(QUANT_TYPES[layers], QUANT_TYPES[output], name != text)
        if layers in QUANT_TYPES and output in QUANT_TYPES
        else None
    )
    if scheme is None or (scheme.is_floats and scheme.requantizes):
        raise ValueError(
            f'quantize={text!r} is not known; expected "int8", "int4" (groups of 32), "int4-128", "int4-asym" or '
            '"int4-128-asym" (with zero points), and after a slash, if you like, what the output matrix becomes: '
            '"int4/int8", which is the default, "int4/int4", "int4/none"; or "none", which makes floats of quantized '
            'files. "requantize:" in front quantizes those a second time, and before that "draft:" means what drafts '
            "alone"
        )
    return scheme


def schemes_of(text: Any) -> tuple[Scheme | None, Scheme | None]:
    """Returns the schemes of target and drafting models: both to `scheme_of(text)`, or after "draft:" the latter alone.

    Raises:
        ValueError: as `scheme_of` does.
    """
    if isinstance(text, str) and text.startswith(DRAFTING) and text != DRAFTING:
        return None, scheme_of(text.removeprefix(DRAFTING))
    scheme = scheme_of(text)
    return scheme, scheme


def scheme_for_files(
    scheme: Scheme | None, stored: Mapping[str, QuantType], params: Params, source: Any
) -> Scheme | None:
    """Decides on the scheme of a model with quantized files, by the same rule for all formats.

    The numbers of the files are kept. A scheme of the same width changes nothing, which the log says; "none" makes
    floats of them; another width would lose more, and is refused unless the scheme says that it requantizes. The width
    of the files is that of most of their quantized weights: files of 4 bits have some matrices in 6 or 8.

    Args:
        scheme: what was asked for.
        stored: type of each parameter that the files hold quantized, by path.
        params: the parameters, of anything that has a shape.
        source: the files, for messages.

    Returns:
        The scheme to apply to every parameter; None keeps them all.

    Raises:
        ValueError: another width.
    """
    sizes: collections.Counter[int] = collections.Counter()
    for path, leaf in flat(params):
        if path in stored:
            sizes[stored[path].bits] += math.prod(leaf.shape)
    if scheme is None or not sizes or scheme.is_floats:
        return scheme
    bits = sizes.most_common(1)[0][0]
    if scheme.requantizes:
        log.warning("%s holds weights of %d bits: they are quantized a second time, which loses more", source, bits)
        return scheme
    requested_bits = [quant_type.bits for quant_type in (scheme.layers, scheme.output) if quant_type is not None][0]
    if requested_bits != bits:
        raise ValueError(
            f"{source} holds weights that are quantized to {bits} bits already, and {requested_bits} were asked for; "
            'leave quantize out to keep them, give "none" for floats, or put "requantize:" in front (eagle-jax '
            "quantize --requantize) to quantize them a second time"
        )
    log.warning("%s holds weights of %d bits already: they are kept, and quantize changes nothing", source, bits)
    return None


def is_matrix(path: str) -> bool:
    """Returns whether the parameter is one that rows are multiplied with, and so may be quantized."""
    return _MATRIX.search(path) is not None


def may_be_quantized(path: str) -> bool:
    """Returns whether files may hold the parameter quantized: a matrix, or a table of embeddings."""
    return is_matrix(path) or _TABLE.search(path) is not None


def quantize_params(params: Params, scheme: Scheme, above: str = "") -> Params:
    """Returns the model with quantized matrices; `params`, as stored, is emptied meanwhile: no weight is held twice."""
    quantized: Params = {}
    for name in list(params):
        leaf, path = params.pop(name), f"{above}{name}"
        is_node = isinstance(leaf, dict)
        quantized[name] = (
            quantize_params(leaf, scheme, f"{path}/") if is_node else scheme.applied(path, leaf, leaf.dtype)
        )
    return quantized


def dense_params(params: Params) -> Params:
    """Returns the same model in floats."""
    return jax.tree.map(dense, params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))


def is_quantized(params: Params) -> bool:
    """Returns whether any weight is quantized."""
    return any(isinstance(leaf, QuantArray) for _, leaf in flat(params))


def flat(params: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every parameter with its path, such as `layers_0/self_attn/o_proj/weight`; a quantized weight is one."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value
