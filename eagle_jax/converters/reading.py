"""Reads parameters from files, one tensor at a time: as floats, quantized while reading, or quantized in the files."""

import logging
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.converters import names, packed
from eagle_jax.converters.files import Weights
from eagle_jax.converters.names import Params, Rule, Slot
from eagle_jax.models.quant import Scheme, scheme_for_files
from eagle_jax.ops.quantized import QuantArray, bound, dense
from eagle_jax.sharding import Place

log = logging.getLogger("eagle_jax.converters")


def read_params(
    weights: Weights,
    rules: Iterable[Rule],
    shapes: Params,
    dtype: jnp.dtype,
    place: Place | None = None,
    scheme: Scheme | None = None,
) -> Params:
    """Returns the parameters of the given shapes, one tensor at a time.

    Tensors are read one after another, so a model that is quantized while reading is never in memory as floats.

    Args:
        weights: files that passed `names.check`.
        shapes: the parameter tree; leaves need only a shape.
        place: puts a parameter on the devices of a mesh; None uses the default device.
        scheme: type to quantize to; None keeps what the files hold. `scheme_for_files` decides for files that are
            already quantized.

    Raises:
        ValueError: the scheme's groups do not divide a matrix, the files are quantized to another width, or they hold
            numbers that are NaN or infinite.
    """
    by_path = names.slots(rules, shapes)
    quantized_types = names.quant_types(weights, by_path)
    scheme = scheme_for_files(scheme, quantized_types, shapes, weights.folder)
    if scheme is not None:
        scheme.check(shapes)
    for note in weights.notes:
        log.warning("%s: %s", weights.folder, note)
    params: Params = {}
    finite_checks: list[tuple[Slot, Any, list[jax.Array]]] = []
    for path, slot in by_path.items():
        *parents, last = path.split("/")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        if path in quantized_types:
            leaf: Any = _read_quantized(weights, path, slot, dtype, place)
        else:
            leaf_dtype = jnp.dtype("float32") if path.endswith(FLOAT32_SUFFIX) else dtype
            if place is None:
                leaf = _read(weights, slot, leaf_dtype)
            else:
                leaf = place(path, _read_host(weights, slot, leaf_dtype))
        flags = _finite_flags(leaf)
        if scheme is not None:
            leaf = scheme.applied(path, leaf, dtype)
            flags += [] if isinstance(leaf, QuantArray) else _finite_flags(leaf)
        finite_checks.append((slot, leaf, flags))
        # Without waiting, a fast disk would queue the whole model for a slow device.
        node[last] = jax.block_until_ready(leaf)
    for slot, leaf, flags in finite_checks:
        if not all(flags):
            _refuse_not_finite(weights, slot, leaf, dtype)
    return params


FLOAT32_SUFFIX = "/correction_bias"  # always float32: rounding it to bfloat16 changes the choice of experts

_is_finite = jax.jit(lambda values: jnp.all(jnp.isfinite(values)))


def _finite_flags(leaf: Any) -> list[jax.Array]:
    """Returns flags on device: whether a parameter's floats, and a quantized parameter's largest value, are finite."""
    floats = [array for array in jax.tree.leaves(leaf) if jnp.issubdtype(array.dtype, jnp.floating)]
    return [_is_finite(array) for array in floats] + ([_is_finite(bound(leaf))] if isinstance(leaf, QuantArray) else [])


def _refuse_not_finite(weights: Weights, slot: Slot, leaf: Any, dtype: jnp.dtype) -> None:
    """Raises ValueError for a parameter that would make every logit NaN."""
    parts = [dense(leaf)] if isinstance(leaf, QuantArray) else jax.tree.leaves(leaf)
    floats = [np.asarray(array, np.float32) for array in parts if jnp.issubdtype(array.dtype, jnp.floating)]
    indices = [index.tolist() for values in floats for index in np.argwhere(~np.isfinite(values))]
    too_large = f"{dtype} has no room for them: give dtype='bfloat16' or 'float32'; or " if dtype == jnp.float16 else ""
    raise ValueError(
        f"tensor {slot.keys[0]} in {weights.info[slot.keys[0]].file} holds {len(indices)} numbers that are NaN or "
        f"infinite, the first at {indices[0] if indices else []}; {too_large}the file is damaged, or a training "
        "diverged: download or make it again"
    )


def _read_quantized(weights: Weights, path: str, slot: Slot, dtype: jnp.dtype, place: Place | None) -> QuantArray:
    quant_type = weights.info[slot.keys[0]].quant_type
    assert quant_type is not None
    tensors_ = [weights.take_quantized(key) for key in slot.keys]
    parts: dict[str, Any] = {}
    for name in packed.QuantizedTensor._fields:
        values = [getattr(tensor, name) for tensor in tensors_]
        if values[0] is not None:
            parts[name] = np.stack(values) if slot.stacked else values[0]
    parts["codes"] = parts["codes"].astype(quant_type.code_dtype)
    for name in ("scales", "minima"):
        if name in parts and parts[name].dtype != np.float16:
            parts[name] = parts[name].astype(np.float32)
    placed = {
        name: jnp.asarray(part) if place is None else place(f"{path}/{name}", part) for name, part in parts.items()
    }
    return QuantArray(**placed, bits=quant_type.bits, dtype=np.dtype(dtype), levels=quant_type.levels)


def _read(weights: Weights, slot: Slot, dtype: jnp.dtype) -> jax.Array:
    if not slot.stacked:  # the device converts the dtype
        return _to_device(weights.take(slot.keys[0]).reshape(slot.leaf.shape), dtype)
    return jnp.asarray(_read_host(weights, slot, dtype))


def _read_host(weights: Weights, slot: Slot, dtype: jnp.dtype) -> np.ndarray:
    if not slot.stacked:
        return weights.take(slot.keys[0]).reshape(slot.leaf.shape).astype(dtype)
    stack = np.empty((len(slot.keys), *slot.shape), dtype)
    for part, key in zip(stack, slot.keys, strict=True):
        part[...] = weights.take(key)
    return stack


def _to_device(value: np.ndarray, dtype: jnp.dtype) -> jax.Array:
    if value.dtype == np.float64:
        value = value.astype(np.float32)
    return jnp.asarray(value).astype(dtype)
