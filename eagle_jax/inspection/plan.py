"""Plans the memory of a model on each device of a mesh, from configurations: no weight is read or allocated."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.checks import whole_number
from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import Pair, known_pair, quant_types, target_config
from eagle_jax.converters.files import Weights
from eagle_jax.converters.heads import kinds, mtp
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.loading.dtypes import dtype_of
from eagle_jax.loading.folders import means_mtp_layer
from eagle_jax.loop.greedy import MAX_LOGITS_BYTES
from eagle_jax.methods.default_trees import PUBLISHED, shrink_to
from eagle_jax.models import layout
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM, empty_cache
from eagle_jax.models.quant import Scheme, quantize_params, scheme_for_files, schemes_of
from eagle_jax.ops.attention_parts import MAX_SCORE_BYTES
from eagle_jax.ops.quantized import QuantArray, QuantType, zeros
from eagle_jax.scheduling.sizes import CHUNK, slots_for_tree
from eagle_jax.sharding import (
    DATA,
    HEAD,
    MODEL,
    STATE,
    TARGET,
    bytes_per_device,
    check,
    model_sizes,
    parse,
    with_repeated_kv_heads,
)
from eagle_jax.sharding.rules import map_paths

Stored = tuple[tuple[str, QuantType], ...]
HeadConfig = EagleConfig | Eagle3Config | DFlashConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Bytes on each device during prefill and decoding.

    Attributes:
        mesh: number of devices along each axis.
        requests: number of requests decoded together, on all devices.
        target, head: weights.
        cache: keys and values of the committed tokens, including the head's.
        prefill, step: peak of temporary buffers in a prefill chunk of all prompts, and in a greedy step: logits,
            attention scores, activations of an MLP, new keys and values. These are estimates; the rest is exact.
    """

    mesh: Mapping[str, int]
    requests: int
    target: int
    head: int
    cache: int
    prefill: int
    step: int

    @property
    def buffers(self) -> int:
        """Peak of the temporary buffers."""
        return max(self.prefill, self.step)

    @property
    def total(self) -> int:
        return self.target + self.head + self.cache + self.buffers


def plan(
    target: str | Path,
    head: str | Path | None = None,
    *,
    mesh: str | None = None,
    chips: int = 1,
    memory: float = 16e9,
    requests: int = 8,
    slots: int = 4096,
    dtype: Any = "bfloat16",
    nodes: int = 60,
    quantize: str | Scheme | None = None,
) -> Plan:
    """Returns the memory of a target and head on each chip.

    Args:
        target: name of a published pair, or a folder with a `config.json`.
        head: folder of an EAGLE or DFlash head, whose headers are read; None is the pair's head, or no head.
        mesh: `"data:2,model:4"`; None chooses for `chips`: as few along `model` as leave a tenth of the memory free,
            otherwise as many as divide the target.
        memory: bytes of one chip.
        requests: number of requests decoded together on each part of the `data` axis.
        slots: maximum number of tokens of prompt and answer; caches are rounded up as in decoding.
        dtype: dtype of weights and caches.
        nodes: nodes of a draft tree, root included; 1 is plain decoding.
        quantize: type of the weights, as for `load`; None keeps what the files hold. Sizes are those on accelerators;
            scales of files are counted in float32.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a folder is not supported, the mesh does not divide the target, or groups of weights do not divide a
            matrix.

    Example:
        >>> from eagle_jax.inspection.plan import plan
        >>> plan("llama-3.1-8b-instruct", chips=4).mesh
        {'data': 2, 'model': 2}
    """
    config, head_config = configs(target, head)
    stored = tuple(quant_types(target).items()) if known_pair(target) is None else ()
    counts = (whole_number(name, n, 1) for name, n in (("requests", requests), ("slots", slots), ("nodes", nodes)))
    requests, slots, nodes = counts
    arguments = requests, slots_of_caches(slots, nodes), nodes, dtype_of(dtype), *schemes_of(quantize), stored
    if mesh is not None:
        return plan_of_configs(config, head_config, parse(mesh), *arguments)
    chips = whole_number("chips", chips, 1)
    meshes = [{DATA: chips // parts, MODEL: parts} for parts in model_sizes(config) if chips % parts == 0]
    plans = [plan_of_configs(config, head_config, sizes, *arguments) for sizes in meshes]
    return next((p for p in plans if p.total <= 0.9 * memory), plans[-1])


def slots_of_caches(tokens: int, nodes: int) -> int:
    """Returns the positions of an accelerator's caches for texts of up to `tokens` tokens and trees of `nodes`."""
    depth = shrink_to(PUBLISHED, nodes).depth if nodes > 1 else 0
    return slots_for_tree(depth, tokens - 1, tokens, CHUNK)


def configs(target: str | Path, head: str | Path | None = None) -> tuple[LlamaConfig, HeadConfig | None]:
    """Returns the configurations of a pair, without its weights."""
    pair = known_pair(target)
    config = target_config(Path(target)) if pair is None else _config_of(pair)
    if means_mtp_layer(head):
        if pair is not None or not _may_hold_layer(Path(target)):
            raise ValueError(
                f"{target} has no layer for multi-token prediction (MTP) that is known; leave the head out"
            )
        return config, mtp.config_of(config)
    if head is not None:
        weights = Weights(Path(head))
        head_config = kinds.files_of(weights.info).check(weights, config).config
        if not isinstance(head_config, HeadConfig):
            name = HEAD_KINDS[head_config.kind].with_article
            raise ValueError(f"{head} holds {name}, not planned for; give an EAGLE or DFlash head, or leave it out")
        return config, head_config
    return config, None if pair is None or pair.head_sizes is None else pair.head_sizes.config


def _config_of(pair: Pair) -> LlamaConfig:
    if pair.target_sizes is None:
        raise ValueError(
            f"the dimensions of {pair.target} are not known without its files; give a folder with its config.json in "
            f"the place of {pair.name}"
        )
    return pair.target_sizes.config


def _may_hold_layer(folder: Path) -> bool:
    """Returns whether a target's files have a layer for multi-token prediction; true without weight files."""
    try:
        return mtp.is_present(Weights(folder).info)
    except FileNotFoundError:
        return True


def plan_of_configs(
    config: LlamaConfig,
    head: HeadConfig | None,
    sizes: Mapping[str, int],
    requests: int,
    slots: int,
    nodes: int,
    dtype: Any,
    scheme: Scheme | None = None,
    head_scheme: Scheme | None = None,
    stored: Stored = (),
) -> Plan:
    """Computes `plan` for given configurations, with caches of exactly `slots` positions.

    Args:
        stored: types of the target's parameters that are quantized in its files, by path.
    """
    check(config, sizes)
    config, rows = with_repeated_kv_heads(config, sizes), requests * sizes[DATA]
    weights = bytes_per_device(target_shapes(config, dtype, scheme, stored).params, TARGET, sizes)
    cache = bytes_per_device(_cache(config, rows, slots, dtype), STATE, sizes)
    head_bytes = 0
    if head is not None:
        head = dataclasses.replace(head, layers=with_repeated_kv_heads(head.layers, sizes))
        head_bytes = bytes_per_device(head_shapes(head, dtype, head_scheme).params, HEAD, sizes)
        cache += bytes_per_device(_cache(head.layers, rows, slots, dtype), STATE, sizes)
    step = _step(config, sizes, requests * nodes, slots, dtype)
    prefill = _prefill(config, sizes, requests, slots, dtype)
    resident = dict(target=weights, head=head_bytes, cache=cache)
    return Plan(mesh=dict(sizes), requests=rows, **resident, prefill=prefill, step=step)


@functools.lru_cache(maxsize=16)
def target_shapes(config: LlamaConfig, dtype: Any, scheme: Scheme | None = None, stored: Stored = ()) -> LM:
    """Returns the shapes of the target in the layout for decoding."""
    types = dict(stored)

    def init() -> LM:
        model = LM.init(config, jax.random.key(0), dtype)
        file_scheme = scheme_for_files(scheme, types, model.params, "the target")
        stored_types = {} if file_scheme is not None and (file_scheme.is_floats or file_scheme.requantizes) else types
        params = _stored(model.params, stored_types)
        return _for_decoding(dataclasses.replace(model, params=params), config.head_dims, file_scheme)

    return jax.eval_shape(init)


@functools.lru_cache(maxsize=16)
def head_shapes(config: HeadConfig, dtype: Any, scheme: Scheme | None = None) -> AnyHead:
    """Returns the shapes of the head in the layout for decoding."""

    def init() -> AnyHead:
        head = HEAD_KINDS[config.kind].get("network").init(config, jax.random.key(0), dtype)
        return _for_decoding(head, config.layers.head_dim, scheme)

    return jax.eval_shape(init)


def _for_decoding(model: Any, head_dim: int | tuple[int, ...], scheme: Scheme | None) -> Any:
    params = model.params
    if scheme is not None:
        scheme.check(params)
        params = jax.tree.map(_packed, quantize_params(params, scheme), is_leaf=lambda x: isinstance(x, QuantArray))
    return dataclasses.replace(model, params=layout.for_decoding(params, head_dim, sharded=True))


def _stored(params: Any, types: Mapping[str, QuantType]) -> Any:
    """Returns the parameters, quantized where the files hold them quantized."""

    def as_stored(path: str, leaf: Any) -> Any:
        return zeros(types[path], leaf.shape, leaf.dtype) if path in types else leaf

    return map_paths(as_stored, params)


def _packed(leaf: Any) -> Any:
    """Returns a quantized weight in the layout of accelerators, even on a CPU."""
    if not isinstance(leaf, QuantArray):
        return leaf
    return dataclasses.replace(leaf, codes=leaf.codes.astype(leaf.quant_type.code_dtype_on("tpu")))


def _cache(config: LlamaConfig, rows: int, slots: int, dtype: Any) -> Any:
    return jax.eval_shape(lambda: empty_cache(config, rows, slots, dtype))


def _step(config: LlamaConfig, sizes: Mapping[str, int], rows: int, slots: int, dtype: Any) -> int:
    """Returns the peak memory of a greedy step with `rows` nodes on a device, in bytes."""
    parts, item = sizes[MODEL], jnp.dtype(dtype).itemsize
    logits = 4 * rows * config.vocab_size // (parts if config.vocab_size % parts == 0 else 1)
    if parts * sizes[DATA] == 1:
        logits = min(logits, MAX_LOGITS_BYTES)
    return max(logits, _layer_peak(config, parts, rows, slots, item)) + _new_state_bytes(config, parts, rows, item)


def _prefill(config: LlamaConfig, sizes: Mapping[str, int], requests: int, slots: int, dtype: Any) -> int:
    """Returns the peak memory of prefilling a chunk of every prompt."""
    parts, item, rows = sizes[MODEL], jnp.dtype(dtype).itemsize, requests * CHUNK
    return _layer_peak(config, parts, rows, slots, item) + _new_state_bytes(config, parts, rows, item)


def _layer_peak(config: LlamaConfig, parts: int, rows: int, slots: int, item: int) -> int:
    """Returns the peak memory of a layer, with the residual stream: the MLP's three activations, or attention's scores
    in float32, their weights, queries and outputs.
    """
    mlp = 3 * item * rows * config.intermediate_size // parts
    queries = 2 * item * rows * config.num_attention_heads * config.head_dim // parts
    scores = min(4 * rows * config.num_attention_heads // parts * slots, MAX_SCORE_BYTES)
    return max(mlp, scores + scores * item // 4 + queries) + 2 * item * rows * config.hidden_size


def _new_state_bytes(config: LlamaConfig, parts: int, rows: int, item: int) -> int:
    """Returns the bytes of new state that `rows` tokens add to all layers, before it is written to the caches."""
    size = rows * sum(_token_bytes(config, layer, item) for layer in range(config.num_hidden_layers))
    return size // (1 if config.latent is not None else parts)


def _token_bytes(config: LlamaConfig, layer: int, item: int) -> int:
    """Returns the bytes that a token adds to a layer: state (K/V, latent or `DeltaRows`) and per-layer input."""
    net, latent = config.delta_net, config.latent
    if net is not None and config.is_recurrent(layer):
        return 4 * (net.keys + net.values + net.num_value_heads) + item * net.channels
    if latent is not None:
        return item * (latent.rank + config.head_dim)
    layer_config = config.layer(layer)
    kv = 0 if config.kv_of(layer) == "none" else 2 * layer_config.num_key_value_heads * layer_config.head_dim
    return item * (kv + config.layer_input_size)
