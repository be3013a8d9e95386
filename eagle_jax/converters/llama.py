"""Loads and saves target models in HuggingFace's format."""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names, quant_config, reading
from eagle_jax.converters.errors import listed
from eagle_jax.converters.families import gemma4
from eagle_jax.converters.families import tensors as family_tensors
from eagle_jax.converters.families.config import config_from_hf, config_to_hf
from eagle_jax.converters.families.lookup import IGNORED, text_part
from eagle_jax.converters.files import Weights, check_folder, is_gguf, read_entries
from eagle_jax.converters.overrides import with_changes
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.converters.writing import write_folder
from eagle_jax.models.layer_inputs import LayerInputs
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme
from eagle_jax.ops.quantized import QuantArray, QuantType
from eagle_jax.sharding import Sharding, placing, with_repeated_kv_heads

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"

# Rotary frequencies, which transformers saved until 2023; they follow from the config.
BUFFERS = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)

# Heads that were trained together with their target (Medusa-2).
HEADS = (r"medusa_head\..*",)


def load_target(
    folder: str | pathlib.Path,
    dtype: Any = None,
    sharding: Sharding | None = None,
    scheme: Scheme | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
) -> LM:
    """Loads the target model in a HuggingFace folder: `config.json` and safetensors, or else `.bin` through PyTorch.

    Args:
        folder: a model folder, or a GGUF file.
        dtype: `float32`, `bfloat16` or `float16`; None keeps the stored embedding's dtype, but takes float32 on CPUs if
            the embedding stays quantized.
        sharding: the mesh to shard the model over; weights go straight to its devices, one at a time.
        scheme: type to quantize each matrix to as it is read; None keeps what the folder holds, quantized or not.
        changes: entries that replace those in `config.json`, such as `{"rope_theta": 10000.0}`.

    Raises:
        FileNotFoundError: the folder, its config, or part of its weights is missing.
        ValueError: an unsupported architecture, config key or tensor, or a damaged file.
        ImportError: the weights are `.bin` files and PyTorch is not installed.
    """
    folder = pathlib.Path(folder)
    float_dtype = None if dtype is None else names.float_dtype(dtype)
    config = read_config(folder, changes)
    weights = weights_of(folder, config)
    check_target(weights, config)
    if config.tie_word_embeddings and OUTPUT in weights.info:
        _check_tied(folder)
    chosen = _default_dtype(weights, scheme) if float_dtype is None else float_dtype
    place = None if sharding is None else placing(sharding, sharding.target, config)
    params = reading.read_params(weights, rules(config), shapes(config), chosen, place, scheme)
    return LM(params=params, config=config if sharding is None else with_repeated_kv_heads(config, sharding.sizes))


def _default_dtype(weights: Weights, scheme: Scheme | None) -> jnp.dtype:
    """Returns the default dtype.

    With a quantized embedding hardly anything but activations is float. CPUs compute activations in float32 anyway, so
    float32 is as fast there (docs/quantisation.md) and avoids rounding embeddings to bfloat16.
    """
    stays_quantized = weights.info[EMBEDDING].quant_type is not None and (scheme is None or not scheme.is_floats)
    if stays_quantized and jax.default_backend() == "cpu":
        return jnp.dtype("float32")
    return names.stored_dtype(weights, EMBEDDING)


def from_hf_names(tensors: Mapping[str, Any], config: LlamaConfig) -> names.Params:
    """Returns the parameters for tensors under the names of a HuggingFace checkpoint.

    Args:
        tensors: arrays of numpy or JAX.

    Raises:
        ValueError: a tensor is missing, unknown, or not an array; experts have different shapes, or tied matrices
            differ.
    """
    name = next((key for key, value in tensors.items() if not isinstance(value, np.ndarray | jax.Array)), None)
    if name is not None:
        raise ValueError(
            f"{name} is a {type(tensors[name]).__module__}.{type(tensors[name]).__name__}; expected arrays of numpy or "
            "JAX (of PyTorch's tensors: tensor.detach().float().numpy())"
        )
    slots = names.slots(rules(config), shapes(config))
    tensors = family_tensors.parts_of(tensors, config, names.expected(rules(config), shapes(config)))
    keys = {key for slot in slots.values() for key in slot.keys}
    if missing := sorted(keys - tensors.keys()):
        raise ValueError(f"the weights lack {listed(missing)}; expected all of a checkpoint of this target")
    tied = (re.escape(OUTPUT),) if config.tie_word_embeddings else ()
    ignored = (*BUFFERS, *HEADS, *tied, *family_tensors.unread(config))
    unknown = [key for key in sorted(tensors.keys() - keys) if not any(re.fullmatch(p, key) for p in ignored)]
    if unknown:
        raise ValueError(f"the weights have {listed(unknown)}, unknown to the target; expected a checkpoint of it")
    if config.tie_word_embeddings and not np.array_equal(tensors.get(OUTPUT, tensors[EMBEDDING]), tensors[EMBEDDING]):
        raise ValueError(f"the target ties its matrices, and {OUTPUT} is unlike {EMBEDDING}; leave it out")
    params: names.Params = {}
    for path, slot in slots.items():
        *parents, name = path.split("/")
        node = functools.reduce(lambda inner, parent: inner.setdefault(parent, {}), parents, params)
        parts = [tensors[key] for key in slot.keys]
        if slot.stacked and (odd := next((key for key in slot.keys if tensors[key].shape != slot.shape), None)):
            raise ValueError(f"{odd} has shape {tensors[odd].shape}; expected {slot.shape}")
        node[name] = jnp.stack(parts) if slot.stacked else parts[0]
    return params


def quant_types(folder: str | pathlib.Path) -> dict[str, QuantType]:
    """Returns the types of the parameters that are quantized in a target's files, by path; empty without weights."""
    config = read_config(pathlib.Path(folder))
    try:
        weights = weights_of(pathlib.Path(folder), config)
    except FileNotFoundError:
        return {}
    return names.quant_types(weights, names.slots(rules(config), shapes(config)))


def target_dtype(folder: str | pathlib.Path) -> jnp.dtype:
    """Returns the stored dtype of a target that `load_target` has read before."""
    return names.stored_dtype(Weights(pathlib.Path(folder)), EMBEDDING)


def save_target(lm: LM, folder: str | pathlib.Path, *, extra: Mapping[str, Any] | None = None) -> None:
    """Writes a folder for `load_target` and transformers' `from_pretrained`. Other files in the folder stay.

    Args:
        extra: further entries of `config.json` that do not change the model, such as `eos_token_id`.

    Raises:
        ValueError: HuggingFace cannot express the config, or an entry of `extra` may change the model.
        FileExistsError: the folder holds other weights.
    """
    extra = dict(extra or {})
    unsafe = sorted(set(extra) - IGNORED)
    if unsafe:
        raise ValueError(
            f"extra entry {unsafe[0]}={extra[unsafe[0]]!r} may change the model; only book-keeping can be added"
        )
    table = rules(lm.config)
    if family_tensors.joins(lm.config) and any(isinstance(leaf, QuantArray) for leaf in _leaves(lm.stored_params)):
        raise ValueError(
            "files of this family hold several matrices in one tensor, and quantized ones are not written so; load the "
            'model with quantize="none", or keep the files that it was read from'
        )
    entries = config_to_hf(lm.config) | {"torch_dtype": lm.dtype.name} | extra
    entries |= quant_config.params_entry(table, lm.stored_params)
    tensors = family_tensors.join(lm.config, names.tensors(table, lm.stored_params))
    write_folder(pathlib.Path(folder), entries, tensors)


def _leaves(params: names.Params) -> list[Any]:
    return jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))


def rules(config: LlamaConfig) -> tuple[names.Rule, ...]:
    """Returns the table of names."""
    return (
        names.Rule(EMBEDDING, "embed_tokens/embedding"),
        *family_tensors.rules_of(config),
        *(names.Rule(key, path) for key, path in gemma4.LAYER_INPUTS.items()),
        names.Rule("model.norm.weight", "norm/scale"),
        names.Rule(OUTPUT, "lm_head/weight"),
    )


def weights_of(folder: pathlib.Path, config: LlamaConfig) -> Weights:
    """Returns the tensors of a target's files; tensors that hold several parameters are divided."""
    weights = Weights(folder)
    family_tensors.divide(weights, config, names.expected(rules(config), shapes(config)))
    return weights


def read_config(folder: pathlib.Path, changes: Mapping[str, Any] | None = None) -> LlamaConfig:
    """Reads the target's configuration; errors name the file. `changes` are as in `load_target`."""
    check_folder(folder)
    path = folder if is_gguf(folder) else folder / "config.json"
    try:
        entries = with_changes(text_part(read_entries(folder)), changes or {})
        return config_from_hf(quant_config.without_quantization(entries), changes or ())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_target(weights: Weights, config: LlamaConfig) -> None:
    """Checks the files against the config without reading a tensor; divides tensors that hold several parameters."""
    if is_base_model(weights.info):
        raise ValueError(
            f"{weights.folder} holds a model without its output matrix, under names without 'model.', as transformers' "
            "AutoModel saves it; save it with AutoModelForCausalLM"
        )
    family_tensors.divide(weights, config, names.expected(rules(config), shapes(config)))
    tied = (re.escape(OUTPUT),) if config.tie_word_embeddings else ()
    ignored = (*BUFFERS, *HEADS, *tied, *family_tensors.unread(config))
    names.check(weights, rules(config), shapes(config), ignored)


def is_base_model(info: Mapping[str, TensorInfo]) -> bool:
    """Returns whether these are tensors of a base model (`LlamaModel`); a draft head also has `fc`."""
    keys = EMBEDDING.removeprefix("model."), "norm.weight"
    has_layers = any(name.startswith("layers.0.") for name in info)
    return has_layers and all(key in info for key in keys) and "fc.weight" not in info


def shapes(config: LlamaConfig) -> names.Params:
    """Returns the parameter tree with shapes as leaves."""
    return jax.tree.map(lambda leaf: leaf, _shapes(config))  # a copy that the caller may modify


@functools.lru_cache(maxsize=4)
def _shapes(config: LlamaConfig) -> names.Params:
    """Traces one layer of each kind, since layers of a kind have equal shapes: tracing 30 layers takes 1.7 s."""
    layers = range(config.num_hidden_layers)
    kinds = {i: (config.is_sparse(i), config.is_recurrent(i), config.layer(i), config.kv_of(i)) for i in layers}
    first_of_kind = {kind: i for i, kind in sorted(kinds.items(), reverse=True)}
    traced = sorted(first_of_kind.values())
    params = jax.eval_shape(functools.partial(LM.init, _with_layers(config, traced)), jax.random.key(0)).params
    layer_shapes = {kinds[i]: params.pop(f"layers_{n}") for n, i in enumerate(traced)}
    return params | _layer_inputs(config) | {f"layers_{i}": layer_shapes[kinds[i]] for i in layers}


def _with_layers(config: LlamaConfig, layers: list[int]) -> LlamaConfig:
    """Returns the config of a model with only these layers."""
    experts, net, part = config.experts, config.delta_net, config.by_layer

    def where(holds: Callable[[int], bool]) -> tuple[int, ...]:
        return tuple(n for n, i in enumerate(layers) if holds(i))

    num_shared = len(where(lambda i: config.kv_of(i) == "none"))
    return dataclasses.replace(
        config,
        num_hidden_layers=len(layers),
        full_attention_layers=where(lambda i: config.window(i) is None) if part is not None else (),
        no_rope_layers=(),
        experts=None
        if experts is None
        else dataclasses.replace(experts, mlp_only_layers=where(lambda i: not config.is_sparse(i))),
        delta_net=None if net is None else dataclasses.replace(net, layers=where(config.is_recurrent)),
        by_layer=None if part is None else dataclasses.replace(part, num_kv_shared_layers=num_shared),
    )


def _layer_inputs(config: LlamaConfig) -> names.Params:
    """Returns the shapes of `layer_inputs`, whose tensors hold parameters of every layer."""
    if not config.layer_input_size:
        return {}
    tokens, embeddings = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1, config.hidden_size))
    init = functools.partial(LayerInputs(config).init, jax.random.key(0), tokens, embeddings)
    return {"layer_inputs": jax.eval_shape(init)["params"]}


def _check_tied(folder: pathlib.Path) -> None:
    """Raises ValueError if the files hold two different matrices although the config ties them."""
    weights = Weights(folder)
    if not np.array_equal(weights.take(EMBEDDING), weights.take(OUTPUT)):
        raise ValueError(
            f"{folder} has tie_word_embeddings=true and an {OUTPUT} unlike {EMBEDDING}; set it to false to use both"
        )
