"""Tables of what lies where on a mesh."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import P

DATA, MODEL = "data", "model"
AXES = (DATA, MODEL)

Rules = tuple[tuple[str, P], ...]

# Ordered tables: the first pattern (re.search) that is found in an array's path decides. An axis that does not divide
# its dimension is left out. Weights lie as in files, `weight [out, in]`, or as for decoding (models/layout.py):
# transposed `weight/data [in, out]`, qkv_proj `[k, g + 2, c, in]`, gate_up_proj `[2, out, in]`.
_LAYERS: Rules = (
    (r"mlp/experts/(gate|up)$", P(None, MODEL, None)),  # every device has a slice of every expert: loads are even
    (r"mlp/experts/down$", P(None, None, MODEL)),
    (r"mlp/experts/(gate|up)_bias$", P(None, MODEL)),
    (r"self_attn/[qkv]_proj/weight$", P(MODEL, None)),
    (r"self_attn/[qkv]_proj/bias$", P(MODEL)),
    (r"self_attn/qkv_proj/weight/data$", P(None, MODEL)),
    (r"self_attn/qkv_proj/", P(MODEL)),
    (r"(o|down)_proj/weight$", P(None, MODEL)),
    (r"(o|down)_proj/weight/data$", P(MODEL, None)),
    (r"self_attn/sinks$", P(MODEL)),
    (r"self_attn/(q_b|kv_b)_proj/weight$", P(MODEL, None)),
    (r"self_attn/q_b_proj/weight/data$", P(None, MODEL)),
    (r"linear_attn/in_proj_(qkvz?|z)/weight$", P(MODEL, None)),
    (r"linear_attn/in_proj_(qkvz?|z)/weight/data$", P(None, MODEL)),
    (r"linear_attn/out_proj/weight$", P(None, MODEL)),
    (r"linear_attn/out_proj/weight/data$", P(MODEL, None)),
    (r"mlp/(shared_experts/)?(gate|up)_proj/weight$", P(MODEL, None)),
    (r"mlp/(shared_experts/)?(gate|up)_proj/weight/data$", P(None, MODEL)),
    (r"mlp/(gate|up)_proj/bias$", P(MODEL)),
    (r"mlp/(shared_experts/)?gate_up_proj/weight/data$", P(None, None, MODEL)),
    (r"mlp/(shared_experts/)?gate_up_proj/", P(None, MODEL)),
)
_VOCABULARY: Rules = (
    (r"embed_tokens/embedding$", P(MODEL, None)),
    (r"lm_head/weight$", P(MODEL, None)),
    (r"lm_head/weight/data$", P(None, MODEL)),
)
_WHOLE: Rules = ((r"", P()),)  # norms, routers, biases of sums, draft vocabularies

TARGET: Rules = (
    *_VOCABULARY,
    *_LAYERS,
    *_WHOLE,
)
HEAD: Rules = (
    *_VOCABULARY,
    (r"fc/weight$", P(None, MODEL)),
    (r"fc/weight/data$", P(MODEL, None)),
    (r"markov_w1/embedding$|(predecessor|successor)_codebook$|markov_w2/weight$", P(MODEL, None)),
    (r"markov_w2/weight/data$", P(None, MODEL)),
    *_LAYERS,
    *_WHOLE,
)
# Requests, caches, drafters' states, trees and everything else that has a row for each request.
STATE: Rules = (
    (r"(^|/)layers/\d+/(k|v|memory)$", P(DATA, MODEL)),
    (r"(^|/)automata/(token_class|next|mask_of_state|masks)$", P()),  # shared by rows
    (r"", P(DATA)),
)


def spec_of(rules: Rules, path: str) -> P:
    """Returns the spec of the first rule whose pattern is found in the path; an array without a rule is not sharded.

    Codes, scales and minima of a quantized weight, `o_proj/weight/codes`, lie as the weight would: their axes are its
    axes. The order of its inputs is whole.
    """
    if path.endswith("/order"):
        return P()
    path = re.sub(r"/(codes|scales|minima)$", "", path)
    return next((spec for pattern, spec in rules if re.search(pattern, path)), P())


def fitting(spec: P, shape: Sequence[int], sizes: Mapping[str, int]) -> P:
    """Returns `spec` without axes that do not divide their dimension, or that the array has no dimension for."""
    by_axis = zip(shape, spec, strict=False)
    divisible = [
        axes if size % math.prod(sizes[axis] for axis in axes_of(axes)) == 0 else None for size, axes in by_axis
    ]
    while divisible and divisible[-1] is None:
        divisible.pop()
    return P(*divisible)


def divides(spec: P, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Returns whether axes divide the dimensions that they shard; dimensions of size 1 are replicated.

    An array that lacks an axis, as the order of a quantized weight's inputs does, cannot be sharded in this way.
    """
    by_axis = zip(shape, spec, strict=False)
    return len(shape) >= len(spec) and all(
        size == 1 or size % math.prod(sizes[axis] for axis in axes_of(axes)) == 0 for size, axes in by_axis
    )


def per_device(spec: P, shape: Sequence[int], sizes: Mapping[str, int]) -> int:
    """Returns how many numbers of an array each device holds."""
    parts = (math.prod(sizes[axis] for axis in axes_of(axes)) for axes in fitting(spec, shape, sizes))
    return math.prod(shape) // math.prod(parts)


def bytes_per_device(tree: Any, rules: Rules, sizes: Mapping[str, int]) -> int:
    """Returns the memory that arrays, or their shapes, take on each device."""

    def leaf_bytes(path: str, leaf: Any) -> int:
        return per_device(spec_of(rules, path), leaf.shape, sizes) * jax.dtypes.itemsize_bits(leaf.dtype) // 8

    return sum(jax.tree.leaves(map_paths(leaf_bytes, tree)))


def axes_of(axes: Any) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def map_paths(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Applies `function(path, leaf)` to every leaf, with paths such as `layers_0/mlp/down_proj/weight`."""

    def at(path: Any, leaf: Any) -> Any:
        return function(jax.tree_util.keystr(path, simple=True, separator="/"), leaf)

    return jax.tree_util.tree_map_with_path(at, tree)
