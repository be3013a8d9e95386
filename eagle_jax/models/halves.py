"""The halves of a decoder layer, each one operation of machine code of ours, where a layer is what that is made for.

A layer as most are on a single CPU: float weights in strips, no biases, SwiGLU, no norm but the one before each half.
Its numbers are those of the parts, up to rounding, and like theirs the same to the bit in any tree and batch. The first
half, which needs a cache, has no gradient.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.kernels import first_choice, native
from eagle_jax.kernels.native.given import Gated, Mixing, Seen
from eagle_jax.models.cache import KV
from eagle_jax.models.layout import GATE_UP, NATIVE_SCALE, QKV, WEIGHT_STRIPS
from eagle_jax.models.norms import by_xla
from eagle_jax.models.products import matmul
from eagle_jax.models.strips import Strips
from eagle_jax.sharding.tracing import is_spread

Params = Mapping[str, Any]

ROTATED, WIDEST_HEAD = 2 * native.NORM_MULTIPLE, 256  # heads are multiples of the one, up to the other


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
    floats = {part.dtype for part in (residual, x)} == {jnp.dtype(jnp.float32)}
    weights = mixing_weights(norm, attention, residual.shape, x.shape, seen)
    if weights is None or not floats:
        return None
    return native.mixing(residual, x, eps, weights, seen, seen.prefix[0].shape[3] ** -0.5)


def mixing_weights(
    norm: Params | None, attention: Params, residual: tuple[int, ...], x: tuple[int, ...], seen: Seen
) -> Mixing | None:
    """Weights of the first half for rows of these shapes; None if the machine code is not for it."""
    scale = jnp.zeros(0) if norm is None else norm.get(NATIVE_SCALE)
    weights = strips_of(attention, QKV, "o_proj")
    if weights is None or scale is None or first_choice() != "native":
        return None
    qkv, o = weights
    (batch, nodes, inputs), (_, heads, slots, size) = x, seen.prefix[0].shape
    fresh, half = seen.beside[0].shape[2] + nodes, (batch, nodes, size // 2)
    queries = o.shape[-1] // size // heads
    shapes = (qkv.shape, o.shape, seen.visible.shape, *(turn.shape for turn in seen.turns))
    wanted = ((heads, queries + 2, size, inputs), (residual[2], heads * queries * size), (batch, nodes, fresh))
    fits = slots and size % ROTATED == 0 and size <= WIDEST_HEAD and inputs % native.NORM_MULTIPLE == 0
    floats = {part.dtype for part in (*seen.turns, *seen.beside, *seen.prefix)} == {jnp.dtype(jnp.float32)}
    if not fits or not floats or shapes != (*wanted, half, half):
        return None
    return Mixing(scale.astype(jnp.float32), qkv.data, o.data)


def mlp(
    x: Float[Array, "b n h"], norm: Params, eps: float, weights: Params, wanted: Int[Array, ""] | None = None
) -> Float[Array, "b n h"] | None:
    """`x + mlp(norm(x))`; None if the machine code is not for it.

    Args:
        wanted: rows, over all requests, that are not left out; None is all.
    """
    found = mlp_weights(norm, weights, x.shape[2])
    if found is None or x.dtype != jnp.float32:
        return None
    scale, gate_up, down = found
    rows = x.reshape(-1, x.shape[2])
    count = jnp.int32(rows.shape[0]) if wanted is None else wanted
    return _mlp(rows, scale, gate_up, down, count, eps).reshape(x.shape)


def mlp_weights(norm: Params, weights: Params, size: int) -> tuple[Float[Array, "h"], Strips, Strips] | None:
    """Weights of the second half for rows of this size; None if the machine code is not for it."""
    scale, both = norm.get(NATIVE_SCALE), strips_of(weights, GATE_UP, "down_proj")
    if both is None or scale is None:
        return None
    gate_up, down = both
    inner = down.shape[1]
    # a strip may not hold outputs of both gate and up
    if inner % gate_up.width or gate_up.shape != (2, inner, size) or down.shape[0] != size:
        return None
    return scale.astype(jnp.float32), gate_up, down


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _mlp(
    x: Float[Array, "r h"], scale: Float[Array, "h"], gate_up: Strips, down: Strips, wanted: Int[Array, ""], eps: float
) -> Float[Array, "r h"]:
    return native.mlp(x, eps, Gated(scale, gate_up.data, down.data), down.shape[-1], wanted)


def _mlp_in_parts(
    x: Float[Array, "r h"], scale: Float[Array, "h"], gate_up: Strips, down: Strips, eps: float
) -> Float[Array, "r h"]:
    """The same, where a gradient is taken."""
    both = matmul(by_xla(x, scale, eps), gate_up)
    return x + matmul(jax.nn.silu(both[:, 0]) * both[:, 1], down)


_mlp.defvjp(
    lambda *args: jax.vjp(functools.partial(_mlp_in_parts, eps=args[-1]), *args[:-2]),
    lambda eps, back, gradient: (*back(gradient), None),
)


def strips_of(params: Params, *names: str) -> tuple[Strips, ...] | None:
    """Weights of linear maps, if these are all that there is, and each nothing but whole strips of floats."""
    if sorted(params) != sorted(names):
        return None
    found = [params[name].get(WEIGHT_STRIPS) for name in names]
    whole = all(isinstance(strips, Strips) and strips.is_whole for strips in found)
    alike = len({strips.dtype for strips in found if strips is not None}) == 1
    alone = all(len(params[name]) == 1 for name in names) and not is_spread()
    return tuple(found) if whole and alike and alone else None
