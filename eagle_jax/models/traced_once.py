"""Layers of one kind as one function of a program."""

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from eagle_jax import ops
from eagle_jax.models.cache import Cache
from eagle_jax.ops import AttentionInputs, LayerRows


def through(
    layers: Sequence[nn.Module],
    x: Float[Array, "b n h"],
    inputs: AttentionInputs,
    cache: Cache,
    draft_kv: tuple[LayerRows, ...] = (),
    first: int = 0,
) -> tuple[Float[Array, "b n h"], tuple[LayerRows, ...]]:
    """Runs layers `first` and following; returns the last one's output, and the tokens' own keys and values in each."""
    kv = []
    for i, layer in enumerate(layers, start=first):
        x, layer_kv = traced_once(layer, x, inputs, cache.layers[i].operand, draft_kv[i] if draft_kv else None)
        kv.append(layer_kv)
    return x, tuple(kv)


def traced_once(layer: nn.Module, *args: Any) -> tuple[Float[Array, "b n h"], LayerRows]:
    """Calls `layer(*args)`, traced once for all layers of its kind: they share one function, which XLA inlines.

    Tracing and lowering each of SmolLM2's thirty layers took a third of the time in which a kept program is ready.
    """
    if layer.is_initializing():
        call: Any = layer
        return call(*args)
    kind = layer.clone(parent=None, name=None)
    return _layer(kind, ops.tracing_context(), layer.variables["params"], *args)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _layer(kind: nn.Module, context: Hashable, params: Mapping[str, Any], *args: Any) -> Any:
    """Applies a layer to parameters; `context`, all else that its operations read, is only a part of the key."""
    return kind.apply({"params": params}, *args)
