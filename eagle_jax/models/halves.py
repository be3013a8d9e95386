"""The halves of a decoder layer, each one operation of machine code of ours, where a layer is what that is made for.

A layer as most are on a single CPU: float weights in strips, no biases, SwiGLU, no norm but the one before each half.
Its numbers are those of the parts, up to rounding, and like theirs the same to the bit in any tree and batch. There is
no gradient.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.kernels import first_choice, native
from eagle_jax.kernels.native.given import Gated, Mixing, Seen
from eagle_jax.models.cache import KV
from eagle_jax.models.layout import GATE_UP, NATIVE_SCALE, QKV, WEIGHT_STRIPS
from eagle_jax.models.strips import Strips

Params = Mapping[str, Any]

ROTATED = 2 * native.NORM_MULTIPLE  # heads are multiples of it, up to
WIDEST_HEAD = 256


def mixing(
    residual: Float[Array, "b n h"],
    x: Float[Array, "b n i"],
    norm: Params | None,
    eps: float,
    attention: Params,
    seen: Seen,
) -> tuple[Float[Array, "b n h"], KV] | None:
    """`residual + attention(norm(x))` and the tokens' own keys and values; None if the machine code is not for it.

    Args:
        norm: parameters; without any, rows are taken as they are.
        attention: parameters of the projections.
    """
    scale = jnp.zeros(0) if norm is None else norm.get(NATIVE_SCALE)
    weights = _strips(attention, QKV, "o_proj")
    if weights is None or scale is None or first_choice() != "native":
        return None
    qkv, o = weights
    slots, size = seen.prefix[0].shape[2:]
    fresh = seen.beside[0].shape[2] + x.shape[1]
    fits = slots and size % ROTATED == 0 and size <= WIDEST_HEAD and x.shape[2] % native.NORM_MULTIPLE == 0
    floats = {part.dtype for part in (residual, x, *seen.beside, *seen.prefix)} == {jnp.dtype(jnp.float32)}
    if not fits or not floats or seen.visible.shape[2] != fresh:
        return None
    given = Mixing(scale.astype(jnp.float32), qkv.data, o.data)
    return native.mixing(residual, x, eps, given, seen, size**-0.5)


def mlp(x: Float[Array, "b n h"], norm: Params, eps: float, weights: Params) -> Float[Array, "b n h"] | None:
    """`x + mlp(norm(x))`; None if the machine code is not for it."""
    scale, both = norm.get(NATIVE_SCALE), _strips(weights, GATE_UP, "down_proj")
    if both is None or scale is None or x.dtype != jnp.float32:
        return None
    gate_up, down = both
    inner = down.shape[-1]
    if inner % gate_up.width:  # a strip would hold outputs of both
        return None
    given = Gated(scale.astype(jnp.float32), gate_up.data, down.data)
    return native.mlp(x.reshape(-1, x.shape[-1]), eps, given, inner).reshape(x.shape)


def _strips(params: Params, *names: str) -> tuple[Strips, ...] | None:
    """Weights of linear maps, if these are all that there is, and each nothing but whole strips of floats."""
    if sorted(params) != sorted(names):
        return None
    found = [params[name].get(WEIGHT_STRIPS) for name in names]
    whole = all(isinstance(strips, Strips) and strips.is_whole for strips in found)
    return tuple(found) if whole and all(len(params[name]) == 1 for name in names) else None
