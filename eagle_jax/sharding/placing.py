"""Moves arrays to the devices of a mesh, and back to the host."""

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax import P
from jax.sharding import Mesh, NamedSharding

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.sharding.mesh import Sharding, repeats
from eagle_jax.sharding.rules import Rules, axes_of, map_paths

Tree = TypeVar("Tree")
Rows = TypeVar("Rows", np.ndarray, jax.Array)
Place = Callable[[str, np.ndarray], jax.Array]


def placing(sharding: Sharding, rules: Rules, config: LlamaConfig) -> Place:
    """Returns a function that shards a weight as it is read, sending each device its part from the host.

    Args:
        config: config of the stored layers; `with_repeated_kv_heads` gives the config of the sharded ones.
    """

    def place(path: str, value: np.ndarray) -> jax.Array:
        if is_key_or_value(path, config.qk_norm_over == "projection") and not path.endswith("/order"):
            layer_config = layer_of(path, config)
            value = with_repeated_heads(value, repeats(layer_config, sharding.sizes), layer_config.head_dim)
        where = sharding.named(rules, path, value.shape)
        return jax.make_array_from_callback(value.shape, where, lambda index: value[index])

    return place


def layer_of(path: str, config: LlamaConfig) -> LlamaConfig:
    """Returns the config of a parameter's layer."""
    number = re.search(r"(^|/)layers_(\d+)/", path)
    return config if number is None else config.layer(int(number[2]))


def is_key_or_value(path: str, over_projections: bool) -> bool:
    """Returns whether a parameter has key/value heads, which may be repeated.

    Args:
        over_projections: key norms go over all heads of a token, so that their scales have heads too.
    """
    return (
        re.search(r"self_attn/([kv]_proj/|k_norm/scale)" if over_projections else r"self_attn/[kv]_proj/", path)
        is not None
    )


def with_repeated_heads(value: Rows, times: int, head_dim: int) -> Rows:
    """Repeats each head of a matrix or bias `[heads * head_dim, ...]` `times` times."""
    if times == 1:
        return value
    by_head = value.reshape(-1, head_dim, *value.shape[1:])
    return by_head.repeat(times, axis=0).reshape(-1, *value.shape[1:])


def place_all(params: Tree, place: Place) -> Tree:
    """Shards weights that are in memory already."""
    return map_paths(lambda path, leaf: place(path, np.asarray(leaf)), params)


def to_host(tree: Any) -> Any:
    """Returns values as numpy arrays on every process, gathering shards of other processes."""
    is_local = jax.process_count() == 1 or all(
        leaf.is_fully_addressable or leaf.is_fully_replicated for leaf in jax.tree.leaves(tree)
    )
    return jax.tree.map(np.asarray, tree if is_local else _gathered(tree))


@functools.lru_cache(maxsize=1024)
def placement(sharding: Any) -> Any:
    """Returns a hashable key that is equal for shardings that a compiled program treats alike."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    sharded = [tuple(axis for axis in axes_of(axes) if sharding.mesh.shape[axis] > 1) for axes in sharding.spec]
    while sharded and not sharded[-1]:
        sharded.pop()
    return sharding.mesh, tuple(sharded)


def _gathered(tree: Any) -> Any:
    return _compiled_gather(jax.tree.leaves(tree)[0].sharding.mesh)(tree)


@functools.lru_cache(maxsize=8)
def _compiled_gather(mesh: Mesh) -> Any:
    """Returns a mesh's gather, cached: JAX would trace and compile a new function at every call."""
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))
