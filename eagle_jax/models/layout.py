"""Fewer and larger products for decoding: matrices that read the same rows become one, and every matrix is packed.

In files, in training and in converters a model has HuggingFace's matrices, `weight [out, in]`. Decoding multiplies a
few rows at a time, where starting a product costs as much as the product, so those that read the same rows become one:

    self_attn/{q,k,v}_proj  ->  self_attn/qkv_proj  [k, g + 2, c, in]  of each kv head its g queries, its key, its value
    mlp/{gate,up}_proj      ->  mlp/gate_up_proj    [2, out, in]

The leading axes stay apart so that kv heads and MLP columns can be sharded. `ops.pack` then lays each matrix out as
this device reads it; its name and shape stay what they are. Stacked experts stay as they are, and so does `kv_b_proj`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax import ops
from eagle_jax.ops.quantized import QuantArray, map_parts

Params = dict[str, Any]

QKV, GATE_UP = "qkv_proj", "gate_up_proj"
UP = "kv_b_proj"  # of latent attention


def for_decoding(
    params: Params, head_dim: int | tuple[int, ...], *, sharded: bool = False, nested: bool = False
) -> Params:
    """Returns the same parameters laid out for decoding; `params` is emptied on the way, so no weight is held twice.

    Args:
        params: of a target or a draft head, as `converters` and `training` have them.
        head_dim: size of an attention head, or the sizes of all layers (`LlamaConfig.head_dims`).
        sharded: whether for several devices.
        nested: a part of a model, whose table of embeddings is no output matrix.
    """
    tied = not nested and "embed_tokens" in params and "lm_head" not in params
    laid: Params = {}
    for name in list(params):
        node = params.pop(name)
        if isinstance(node, dict):
            if name == UP:
                pass  # it is read as an array, by head
            elif _is_matrix(node):
                node = _packed(node, sharded)
            else:
                own_head_dim = head_dim_in(name, head_dim)
                node = for_decoding(_merged(node, own_head_dim, sharded), own_head_dim, sharded=sharded, nested=True)
        laid[name] = node
    if tied and not sharded and (table := ops.pack_for_backend(laid["embed_tokens"]["embedding"])) is not None:
        laid["embed_tokens"] = {"embedding": table}
    return laid


def head_dim_in(path: str, head_dim: int | tuple[int, ...]) -> int:
    """Returns the size of a head where a parameter is, such as `layers_3/self_attn/k_proj`; only layers have heads."""
    layer = re.match(r"layers_(\d+)", path)
    return head_dim if isinstance(head_dim, int) else head_dim[0 if layer is None else int(layer[1])]


def for_files(params: Mapping[str, Any]) -> Params:
    """Returns parameters as files hold them: `for_decoding` undone, bit for bit but for scales of groups on GPUs.

    Parameters that were never packed are returned as they are.
    """
    stored: Params = {}
    for name, node in params.items():
        stored[name] = for_files(node) if isinstance(node, Mapping) else ops.unpack(node)
    return _parted(stored)


def _is_matrix(node: Params) -> bool:
    return "weight" in node and node["weight"].ndim == 2


def _merged(node: Params, head_dim: int, sharded: bool) -> Params:
    """Merges the parallel projections of one decoder layer's attention or MLP, if they are quantized alike."""
    if _alike(node, qkv := [f"{x}_proj" for x in "qkv"]):
        parts = [node.pop(name) for name in qkv]
        heads = parts[1]["weight"].shape[0] // head_dim
        node[QKV] = _packed(_joined(parts, lambda *rows: _by_head(rows, heads, head_dim)), sharded)
    if _alike(node, both := [f"{x}_proj" for x in ("gate", "up")]):
        node[GATE_UP] = _packed(_joined([node.pop(name) for name in both], lambda *rows: jnp.stack(rows)), sharded)
    return node


def _alike(node: Params, names: list[str]) -> bool:
    weights = [node[name]["weight"] for name in names if name in node and _is_matrix(node[name])]
    kinds = {(jax.tree.structure(weight), tuple(x.shape[1:] for x in jax.tree.leaves(weight))) for weight in weights}
    return len(weights) == len(names) and len(kinds) == 1 and _ordered_alike(weights)


def _ordered_alike(weights: list[Any]) -> bool:
    """Returns whether quantized weights have their inputs in the same order, as those of one group mostly have: GPTQ
    sorts inputs by the activations, which are the same for all. While a program is traced this cannot be checked.
    """
    orders = [weight.order for weight in weights if isinstance(weight, QuantArray) and weight.order is not None]
    traced = any(isinstance(order, jax.core.Tracer) for order in orders)
    return not orders or (not traced and all(np.array_equal(order, orders[0]) for order in orders))


def _joined(parts: list[Params], join: Callable[..., jax.Array]) -> Params:
    """Joins several linear maps into one; they are emptied."""
    return {name: map_parts(join, *(part.pop(name) for part in parts)) for name in list(parts[0])}


def _by_head(parts: tuple[jax.Array, ...], heads: int, head_dim: int) -> jax.Array:
    """Reshapes the rows `[k g c, ..]` of several matrices to `[k, g, c, ..]`, and joins them along g."""
    return jnp.concatenate([rows.reshape(heads, -1, head_dim, *rows.shape[1:]) for rows in parts], axis=1)


def _packed(linear: Params, sharded: bool) -> Params:
    """Packs the matrix of one linear map."""
    return linear | {"weight": ops.pack(linear.pop("weight"), sharded=sharded)} if "weight" in linear else linear


def _parted(node: Params) -> Params:
    if QKV in node:
        merged = node.pop(QKV)
        for part, index in (("q_proj", slice(None, -2)), ("k_proj", slice(-2, -1)), ("v_proj", slice(-1, None))):
            node[part] = {name: map_parts(lambda x, at=index: _rows(x[:, at]), merged[name]) for name in merged}
    if GATE_UP in node:
        merged = node.pop(GATE_UP)
        for part, row in (("gate_proj", 0), ("up_proj", 1)):
            node[part] = {name: map_parts(lambda x, row=row: x[row], merged[name]) for name in merged}
    return node


def _rows(by_head: jax.Array) -> jax.Array:
    """Reshapes `[k, g, c, ..]` to `[k g c, ..]`."""
    return by_head.reshape(-1, *by_head.shape[3:])
