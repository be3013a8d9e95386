"""Replaces a model's weights without compiling again, as after each update in reinforcement learning."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.converters import from_hf_names, load_head, load_target
from eagle_jax.loading.model import Model
from eagle_jax.models import layout
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import QUANT_TYPES, flat
from eagle_jax.ops.quantized import QuantArray, dense, map_parts, quantize
from eagle_jax.sharding import with_repeated_kv_heads
from eagle_jax.sharding.placing import is_key_or_value, with_repeated_heads

Params = Mapping[str, Any]


def with_weights(
    model: Model, target: Params | LM | str | Path | None = None, head: Params | AnyHead | str | Path | None = None
) -> Model:
    """Returns the same model with other weights, on the same devices.

    Compiled programs are reused; only the conversion to the layout for decoding is compiled, on the first call.

    The old model is unchanged; its memory is freed when nothing refers to it (`model = with_weights(model, ...)`).
    Weights are cast to the model's dtype and quantized like the old ones: load a model whose files are quantized with
    `quantize="none"` to train it.

    Args:
        target: the target's new parameters, as arrays of numpy, or of JAX on any devices: nested as in `weights_of`
            (`{"layers_0": {"self_attn": {"q_proj": {"weight": [out, in]}}}}`), or flat under the names of a HuggingFace
            checkpoint (`{"model.embed_tokens.weight": ...}`); or an `LM`; or a HuggingFace folder. None keeps the old.
        head: the head's new parameters, nested; or a head or a folder, with the same draft vocabulary as the old head.

    Raises:
        ValueError: a weight is missing, unknown or of another shape, or `target` or `head` is another kind of model.

    Example:
        >>> import eagle_jax
        >>> model = eagle_jax.load(quantize="none")
        >>> params = eagle_jax.weights_of(model).target          # train on these
        >>> model = eagle_jax.with_weights(model, target=params)
    """
    if target is not None:
        source = _target_params(model, target)
        new = _in_decoding_layout(model, model.target, source, "target")
        model = dataclasses.replace(model, target=dataclasses.replace(_lm_of(model.target), params=new))
    if head is not None:
        if model.head is None:
            raise ValueError("weights for a head, but the model was loaded without one; load it with head=")
        source = _head_params(model, model.head, head)
        model = dataclasses.replace(
            model, head=dataclasses.replace(model.head, params=_in_decoding_layout(model, model.head, source, "head"))
        )
    return model


@dataclasses.dataclass(frozen=True)
class Weights:
    """Parameters nested by module, with matrices `[out, in]`; `head` is None for a model without a head."""

    target: Params
    head: Params | None


def weights_of(model: Model) -> Weights:
    """Returns a copy of a model's parameters, as floats on the model's devices, for training or conversion.

    The copy may be donated; the model is unchanged. Quantized weights are converted to floats. A head that was loaded
    in a narrower dtype than its folder's has lost precision (`load(draft_dtype=)`). On a mesh with more devices along
    `model` than there are key/value heads, these heads are repeated.
    """
    head = None if model.head is None else _as_floats(model.head)
    return Weights(target=_as_floats(_lm_of(model.target)), head=head)


def _as_floats(model: LM | AnyHead) -> Params:
    """Returns the parameters as floats. Only arrays that the model still uses are copied: a second copy may not fit."""
    current = {id(leaf) for leaf in jax.tree.leaves(model.params)}

    def as_copy(leaf: jax.Array | QuantArray) -> jax.Array:
        floats = dense(leaf)
        return jnp.copy(floats) if id(floats) in current else floats

    return jax.tree.map(as_copy, model.stored_params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))


def _lm_of(target: Any) -> LM:
    if not isinstance(target, LM):
        raise ValueError(
            f"a target of type {type(target).__name__} has weights of its own form; replace them in it, and the target "
            "in the Model (dataclasses.replace), which compiles nothing either"
        )
    return target


def _target_params(model: Model, source: Any) -> Params:
    current = _lm_of(model.target)
    if isinstance(source, (str, Path)):
        source = load_target(source, dtype=current.dtype, sharding=model.sharding)
    if isinstance(source, LM):
        config = (
            source.config if model.sharding is None else with_repeated_kv_heads(source.config, model.sharding.sizes)
        )
        _check_same_config("target", current.config, config, ignored=("num_key_value_heads",))
        return source.params
    if isinstance(source, Mapping) and any("." in str(name) for name in source):
        return from_hf_names(source, current.config)
    return source


def _head_params(model: Model, current: AnyHead, source: Any) -> Params:
    if isinstance(source, (str, Path)):
        stored = dataclasses.replace(_lm_of(model.target), params=_lm_of(model.target).stored_params)
        source = load_head(source, stored, dtype=current.dtype)
    if not isinstance(source, AnyHead):
        return source
    if type(source) is not type(current):
        raise ValueError(
            f"a head of kind {type(source).__name__} for one of kind {type(current).__name__}; expected the same"
        )
    old, new = (None if head.vocabulary is None else head.vocabulary.tolist() for head in (current, source))
    if old != new:
        raise ValueError("the new head drafts other tokens than the present one; load it with with_head instead")
    return source.params


def _check_same_config(name: str, old: Any, new: Any, ignored: tuple[str, ...]) -> None:
    """Raises ValueError for a model with another config, which may fit by shapes."""
    for field in dataclasses.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after and field.name not in ignored:
            raise ValueError(
                f"the new {name} has {field.name}={after!r} where the present one has {before!r}; expected the same "
                "kind of model: load it anew"
            )


def _in_decoding_layout(model: Model, current: Any, source: Params, name: str) -> dict[str, Any]:
    """Returns the new weights in the layout for decoding, on the devices of the old ones."""
    if not isinstance(source, Mapping):
        raise ValueError(f"{name} is a {type(source).__name__}; expected parameters by name, a model, or a folder")
    expected = jax.eval_shape(lambda: current.stored_params)
    expected_params, new_params = dict(flat(expected)), dict(flat(source))
    _check_fit(expected_params, new_params, name)
    head_dim = current.head_dim if isinstance(current, AnyHead) else current.config.head_dims
    params = _lay_out(_like_old(expected, new_params, head_dim), head_dim, sharded=model.sharding is not None)
    if model.sharding is not None:
        return model.sharding.put(params, model.sharding.target if name == "target" else model.sharding.head)
    return jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), params, current.params)


_lay_out = jax.jit(layout.for_decoding, static_argnums=1, static_argnames="sharded")


def _like_old(
    expected: Params, new_params: Params, head_dim: int | tuple[int, ...], prefix: str = ""
) -> dict[str, Any]:
    """Returns the new weights with the dtypes, quantization and repeated key/value heads of the old ones."""
    params: dict[str, Any] = {}
    for name, old in expected.items():
        path = f"{prefix}{name}"
        if isinstance(old, Mapping):
            params[name] = _like_old(old, new_params, head_dim, f"{path}/")
            continue
        new = _cast_like(new_params[path], old)
        times = _times(path, new.shape, old.shape)
        size = layout.head_dim_in(path, head_dim)
        new = map_parts(lambda part, times=times, size=size: with_repeated_heads(part, times, size), new)
        is_float = isinstance(old, QuantArray) and not isinstance(new, QuantArray)
        params[name] = _quantized_as(old, new, path) if is_float else new
    return params


def _quantized_as(old: QuantArray, new: jax.Array, path: str) -> QuantArray:
    """Returns a new weight, quantized like the old one.

    Raises:
        ValueError: the old weight was already quantized in its file, so that quantizing would round a second time.
    """
    if old.quant_type not in QUANT_TYPES.values() or old.scales.dtype != jnp.float32:
        raise ValueError(
            f"the present weight {path} is quantized by its file ({old.quant_type}), and new floats would be rounded "
            'to that a second time; load the model with quantize="none" (or "requantize:int8") to give it others'
        )
    return quantize(new, old.quant_type, old.dtype)


def _cast_like(new: Any, old: Any) -> jax.Array | QuantArray:
    """Returns a new weight in the dtype of the old one; if both are quantized alike it stays quantized."""
    if isinstance(new, QuantArray):
        if isinstance(old, QuantArray) and new.quant_type == old.quant_type and new.order is None:
            return dataclasses.replace(new, dtype=old.dtype)
        new = dense(new)
    return jnp.asarray(new, old.dtype)


def _check_fit(expected_params: Params, new_params: Params, name: str) -> None:
    """Raises ValueError that names the first weight that does not fit."""
    if missing := sorted(expected_params.keys() - new_params.keys()):
        raise ValueError(f"the new {name} weights lack {missing[0]}; expected all that weights_of returns")
    if unknown := sorted(new_params.keys() - expected_params.keys()):
        raise ValueError(
            f"the new {name} weights have {unknown[0]}, unknown to the model; expected what weights_of returns"
        )
    for path, leaf in expected_params.items():
        if not _times(path, np.shape(new_params[path]), leaf.shape):
            raise ValueError(
                f"the new {name} weight {path} has shape {np.shape(new_params[path])}; expected {leaf.shape}"
            )


def _times(path: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> int:
    """Returns the number of repetitions of each key/value head of a new weight; 0 if its shape does not fit."""
    if shape == expected:
        return 1
    fits = (
        is_key_or_value(path, over_projections=True)
        and shape[1:] == expected[1:]
        and shape
        and expected[0] % shape[0] == 0
    )
    return expected[0] // shape[0] if fits else 0
