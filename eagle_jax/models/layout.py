"""How weights lie in memory while decoding: fewer and larger products, and turned where products are quicker so.

In files, in training and in converters a model has HuggingFace's matrices, `weight [out, in]`. Decoding multiplies a
few rows at a time, where starting a product costs as much as the product, so those that read the same rows become one:

    self_attn/{q,k,v}_proj  ->  self_attn/qkv_proj  [k, g + 2, c, in]  of each kv head its g queries, its key, its value
    mlp/{gate,up}_proj      ->  mlp/gate_up_proj    [2, out, in]

The leading axes stay apart so that kv heads and MLP columns can be spread over devices. On a single CPU matrices lie in
strips (`models.strips`), called `weight_strips`, and so does a tied embedding, `embedding_strips`; the scales of norms
are called `native_scale`. Matrices that do not fit are XLA's on CPUs too, which packs the right operand of every
product anew: they are turned, and then called `kernel [in, ..]`, unless they are quicker as stored: from `TURNED_BELOW`
inputs on (`benchmarks/products.py`); in float32 they are then the left operand of a few rows (`products.FEW_ROWS`).
Stacked experts stay as they are. Levels and scales of a rounded matrix (`quant.QuantArray`) move together.
Scales for groups of inputs turn it on TPUs too: only so does the TPU compiler make floats of it within the product,
and read 0.63 bytes a number for one row, where of `[out, in]` it reads 1.9 in groups of 32 and 10 in groups of 128. For
GPUs it stays `[out, in]`, with scales of the product's own dtype: of any other form XLA turns a copy in every call and
always makes floats in memory, of this one only in some versions (`benchmarks/gpu_compile.py`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.kernels import native
from eagle_jax.models.quant import QuantArray
from eagle_jax.models.strips import fit, in_strips, out_of_strips

Params = dict[str, Any]

QKV, GATE_UP = "qkv_proj", "gate_up_proj"
WEIGHT_STRIPS, EMBEDDING_STRIPS, NATIVE_SCALE = "weight_strips", "embedding_strips", "native_scale"
TURNED_BELOW = 768  # inputs; in bfloat16 with 2,048 packing as stored takes 668 us and turned 1,643


def for_decoding(params: Params, head_dim: int, *, spread: bool = False) -> Params:
    """The same parameters laid out for decoding; `params` is emptied on the way, so no weight is held twice.

    Args:
        params: of a target or a draft head, as `converters` and `training` have them.
        head_dim: size of one attention head.
        spread: for several devices.
    """
    tied = "embed_tokens" in params and "lm_head" not in params
    laid: Params = {}
    for name in list(params):
        node = params.pop(name)
        if isinstance(node, dict):
            if _is_matrix(node):
                node = _laid(node, spread)
            elif _is_norm(node) and not spread and native.is_used():
                node = {NATIVE_SCALE: node.pop("scale")}
            else:
                node = for_decoding(_merged(node, head_dim, spread), head_dim, spread=spread)
        laid[name] = node
    if tied and not spread and fit(table := laid["embed_tokens"]["embedding"]):
        laid["embed_tokens"] = {EMBEDDING_STRIPS: in_strips(table)}
    return laid


def as_stored(params: Mapping[str, Any]) -> Params:
    """Undoes `for_decoding`, bit for bit but for scales of groups on GPUs; what is stored already stays as it is."""
    stored: Params = {name: as_stored(node) if isinstance(node, Mapping) else node for name, node in params.items()}
    for name, strips in (("weight", WEIGHT_STRIPS), ("embedding", EMBEDDING_STRIPS)):
        if strips in stored:
            stored[name] = out_of_strips(stored.pop(strips))
    if NATIVE_SCALE in stored:
        stored["scale"] = stored.pop(NATIVE_SCALE)
    if "kernel" in stored:
        stored["weight"] = jax.tree.map(lambda part: jnp.moveaxis(part, 0, -1), stored.pop("kernel"))
    return _parted(stored)


def _is_matrix(node: Params) -> bool:
    return "weight" in node and node["weight"].ndim == 2


def _is_norm(node: Params) -> bool:
    return list(node) == ["scale"] and node["scale"].shape[0] % native.NORM_MULTIPLE == 0


def _merged(node: Params, head_dim: int, spread: bool) -> Params:
    """One decoder layer's attention or MLP with its parallel projections in one, if they are rounded alike."""
    if _alike(node, qkv := [f"{x}_proj" for x in "qkv"]):
        parts = [node.pop(name) for name in qkv]
        heads = parts[1]["weight"].shape[0] // head_dim
        node[QKV] = _laid(_joined(parts, lambda *rows: _by_head(rows, heads, head_dim)), spread)
    if _alike(node, both := [f"{x}_proj" for x in ("gate", "up")]):
        node[GATE_UP] = _laid(_joined([node.pop(name) for name in both], lambda *rows: jnp.stack(rows)), spread)
    return node


def _alike(node: Params, names: list[str]) -> bool:
    weights = [node[name]["weight"] for name in names if name in node and _is_matrix(node[name])]
    kinds = {(jax.tree.structure(weight), tuple(x.shape[1:] for x in jax.tree.leaves(weight))) for weight in weights}
    return len(weights) == len(names) and len(kinds) == 1


def _joined(parts: list[Params], join: Callable[..., jax.Array]) -> Params:
    """One linear map of several; they are emptied."""
    return {name: jax.tree.map(join, *(part.pop(name) for part in parts)) for name in list(parts[0])}


def _by_head(parts: tuple[jax.Array, ...], heads: int, head_dim: int) -> jax.Array:
    """Rows `[k g c, ..]` of several matrices to `[k, g + .., c, ..]`."""
    return jnp.concatenate([rows.reshape(heads, -1, head_dim, *rows.shape[1:]) for rows in parts], axis=1)


def _laid(linear: Params, spread: bool) -> Params:
    """One linear map, its matrix in strips or turned if it is to be."""
    if "weight" not in linear:
        return linear
    if not spread and fit(linear["weight"]):
        return linear | {WEIGHT_STRIPS: in_strips(linear.pop("weight"))}
    return _turned(linear)


def _turned(linear: Params) -> Params:
    weight, platform = linear["weight"], jax.default_backend()
    if platform == "gpu" and _in_groups(weight):
        return linear | {"weight": dataclasses.replace(weight, scales=weight.scales.astype(weight.dtype))}
    if (platform == "cpu" and not _is_quicker_as_stored(weight)) or _in_groups(weight):
        return linear | {"kernel": jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), linear.pop("weight"))}
    return linear


def _is_quicker_as_stored(weight: jax.Array | QuantArray) -> bool:
    """Whether XLA:CPU is quicker with `[out, in]`."""
    floats = not isinstance(weight, QuantArray) and weight.dtype in (jnp.bfloat16, jnp.float32)
    return floats and weight.shape[-1] >= TURNED_BELOW


def _in_groups(weight: jax.Array | QuantArray) -> bool:
    return isinstance(weight, QuantArray) and weight.scales.shape[-1] > 1


def _parted(node: Params) -> Params:
    if QKV in node:
        merged = node.pop(QKV)
        for part, index in (("q_proj", slice(None, -2)), ("k_proj", slice(-2, -1)), ("v_proj", slice(-1, None))):
            node[part] = jax.tree.map(lambda value, index=index: _rows(value[:, index]), merged)
    if GATE_UP in node:
        merged = node.pop(GATE_UP)
        for part, row in (("gate_proj", 0), ("up_proj", 1)):
            node[part] = jax.tree.map(lambda value, row=row: value[row], merged)
    return node


def _rows(by_head: jax.Array) -> jax.Array:
    """`[k, g, c, ..]` to `[k g c, ..]`."""
    return by_head.reshape(-1, *by_head.shape[3:])
