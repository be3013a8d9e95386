"""How much memory a model takes on each device of a mesh, from configurations alone: no weight is read or made."""

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
from eagle_jax.loop.greedy import MOST as LOGITS
from eagle_jax.methods.default_trees import PUBLISHED, shrink_to
from eagle_jax.models import layout
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM, empty_cache
from eagle_jax.models.quant import Scheme, quantize_params, scheme_for_files, schemes_of
from eagle_jax.ops.attention_parts import MOST as SCORES
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
    """Bytes on each device while prompts are read and answers decoded.

    Attributes:
        mesh: devices along each axis.
        requests: decoded together, over all devices.
        target, head: weights.
        cache: keys and values of the committed tokens, the head's among them.
        prefill, step: what a chunk of all prompts, and a greedy step, need at a time: logits, attention scores, the
            inside of an MLP, the tokens' own keys and values. Estimates; the rest is exact.
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
        """What is needed at a time, at most."""
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
    """Returns the memory that a pair takes on each chip.

    Args:
        target: name of a published pair, or a folder with a `config.json`.
        head: folder of an EAGLE or DFlash head, of which only the files' headers are read; None is the pair's, or none.
        mesh: `"data:2,model:4"`; None chooses for `chips`: as few of them along `model` as leave a tenth of the memory
            free, or, if none do, as many as divide the target.
        memory: bytes of one chip.
        requests: decoded together by each part of the `data` axis.
        slots: longest prompt and answer together, in tokens; caches are rounded up as decoding rounds them.
        dtype: dtype of weights and caches.
        nodes: nodes of a draft tree, root included; 1 is plain decoding.
        quantize: what the weights are quantized to, as for `load`; None keeps what the files hold. Quantized, they take
            what they take on accelerators; scales of files are counted in float32.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: what a folder holds is not understood, or the mesh does not divide the target, or groups of weights
            do not divide a matrix.

    Example:
        >>> from eagle_jax.inspection.plan import plan
        >>> plan("llama-3.1-8b-instruct", chips=4).mesh
        {'data': 2, 'model': 2}
    """
    config, drafting = configs(target, head)
    stored = tuple(quant_types(target).items()) if known_pair(target) is None else ()
    counts = (whole_number(name, n, 1) for name, n in (("requests", requests), ("slots", slots), ("nodes", nodes)))
    requests, slots, nodes = counts
    arguments = requests, slots_of_caches(slots, nodes), nodes, dtype_of(dtype), *schemes_of(quantize), stored
    if mesh is not None:
        return of_configs(config, drafting, parse(mesh), *arguments)
    chips = whole_number("chips", chips, 1)
    meshes = [{DATA: chips // parts, MODEL: parts} for parts in model_sizes(config) if chips % parts == 0]
    plans = [of_configs(config, drafting, sizes, *arguments) for sizes in meshes]
    return next((one for one in plans if one.total <= 0.9 * memory), plans[-1])


def slots_of_caches(tokens: int, nodes: int) -> int:
    """Returns the slots of an accelerator's caches for texts of up to `tokens` tokens, with trees of `nodes`."""
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
        drafting = kinds.files_of(weights.info).check(weights, config).config
        if not isinstance(drafting, HeadConfig):
            one = HEAD_KINDS[drafting.kind].one
            raise ValueError(f"{head} holds {one}, not planned for; give an EAGLE or DFlash head, or leave it out")
        return config, drafting
    return config, None if pair is None or pair.head_sizes is None else pair.head_sizes.config


def _config_of(pair: Pair) -> LlamaConfig:
    if pair.target_sizes is None:
        raise ValueError(
            f"the dimensions of {pair.target} are not known without its files; give a folder with its config.json in "
            f"the place of {pair.name}"
        )
    return pair.target_sizes.config


def _may_hold_layer(folder: Path) -> bool:
    """Returns whether a target's files, if they are there, have a layer for multi-token prediction."""
    try:
        return mtp.is_present(Weights(folder).info)
    except FileNotFoundError:
        return True


def of_configs(
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
    """Computes `plan` for given configurations, and caches of exactly `slots`.

    Args:
        stored: types of the target's parameters that its files hold quantized, by path.
    """
    check(config, sizes)
    config, rows = with_repeated_kv_heads(config, sizes), requests * sizes[DATA]
    weights = bytes_per_device(target_shapes(config, dtype, scheme, stored).params, TARGET, sizes)
    cache = bytes_per_device(_cache(config, rows, slots, dtype), STATE, sizes)
    drafting = 0
    if head is not None:
        head = dataclasses.replace(head, layers=with_repeated_kv_heads(head.layers, sizes))
        drafting = bytes_per_device(head_shapes(head, dtype, head_scheme).params, HEAD, sizes)
        cache += bytes_per_device(_cache(head.layers, rows, slots, dtype), STATE, sizes)
    step = _step(config, sizes, requests * nodes, slots, dtype)
    reading = _prefill(config, sizes, requests, slots, dtype)
    resident = dict(target=weights, head=drafting, cache=cache)
    return Plan(mesh=dict(sizes), requests=rows, **resident, prefill=reading, step=step)


@functools.lru_cache(maxsize=16)
def target_shapes(config: LlamaConfig, dtype: Any, scheme: Scheme | None = None, stored: Stored = ()) -> LM:
    """Returns the shapes of the target as it is laid out for decoding."""
    types = dict(stored)

    def init() -> LM:
        model = LM.init(config, jax.random.key(0), dtype)
        decided = scheme_for_files(scheme, types, model.params, "the target")
        stored_types = {} if decided is not None and (decided.is_floats or decided.requantizes) else types
        params = _stored(model.params, stored_types)
        return _for_decoding(dataclasses.replace(model, params=params), config.head_dims, decided)

    return jax.eval_shape(init)


@functools.lru_cache(maxsize=16)
def head_shapes(config: HeadConfig, dtype: Any, scheme: Scheme | None = None) -> AnyHead:
    """Returns the shapes of the head as it is laid out for decoding."""

    def init() -> AnyHead:
        head = HEAD_KINDS[config.kind].get("network").init(config, jax.random.key(0), dtype)
        return _for_decoding(head, config.layers.head_dim, scheme)

    return jax.eval_shape(init)


def _for_decoding(model: Any, head_dim: int | tuple[int, ...], scheme: Scheme | None) -> Any:
    params = model.params
    if scheme is not None:
        scheme.check(params)
        params = jax.tree.map(_packed, quantize_params(params, scheme), is_leaf=lambda x: isinstance(x, QuantArray))
    return dataclasses.replace(model, params=layout.for_decoding(params, head_dim, spread=True))


def _stored(params: Any, types: Mapping[str, QuantType]) -> Any:
    """Returns the parameters, with quantized ones where files hold them quantized."""

    def as_stored(path: str, leaf: Any) -> Any:
        return zeros(types[path], leaf.shape, leaf.dtype) if path in types else leaf

    return map_paths(as_stored, params)


def _packed(leaf: Any) -> Any:
    """Returns a quantized weight as accelerators hold it, also where the plan is made on a CPU."""
    if not isinstance(leaf, QuantArray):
        return leaf
    return dataclasses.replace(leaf, codes=leaf.codes.astype(leaf.quant_type.code_dtype_on("tpu")))


def _cache(config: LlamaConfig, rows: int, slots: int, dtype: Any) -> Any:
    return jax.eval_shape(lambda: empty_cache(config, rows, slots, dtype))


def _step(config: LlamaConfig, sizes: Mapping[str, int], rows: int, slots: int, dtype: Any) -> int:
    """Returns the peak memory of a greedy step over so many nodes on a device, in bytes."""
    parts, item = sizes[MODEL], jnp.dtype(dtype).itemsize
    logits = 4 * rows * config.vocab_size // (parts if config.vocab_size % parts == 0 else 1)
    if parts * sizes[DATA] == 1:
        logits = min(logits, LOGITS)
    return max(logits, _pass(config, parts, rows, slots, item)) + _fresh_rows_bytes(config, parts, rows, item)


def _prefill(config: LlamaConfig, sizes: Mapping[str, int], requests: int, slots: int, dtype: Any) -> int:
    """Returns the peak memory of prefilling a chunk of every prompt."""
    parts, item, rows = sizes[MODEL], jnp.dtype(dtype).itemsize, requests * CHUNK
    return _pass(config, parts, rows, slots, item) + _fresh_rows_bytes(config, parts, rows, item)


def _pass(config: LlamaConfig, parts: int, rows: int, slots: int, item: int) -> int:
    """Returns the most that a layer needs at a time, and the residual stream: gate, up and their product, or
    scores in float32 and the weights made of them, queries and what they attend to.
    """
    mlp = 3 * item * rows * config.intermediate_size // parts
    queries = 2 * item * rows * config.num_attention_heads * config.head_dim // parts
    scores = min(4 * rows * config.num_attention_heads // parts * slots, SCORES)
    return max(mlp, scores + scores * item // 4 + queries) + 2 * item * rows * config.hidden_size


def _fresh_rows_bytes(config: LlamaConfig, parts: int, rows: int, item: int) -> int:
    """Returns how many bytes the tokens of a pass add to the states of all layers, before they are written there."""
    size = rows * sum(_added(config, layer, item) for layer in range(config.num_hidden_layers))
    return size // (1 if config.latent is not None else parts)


def _added(config: LlamaConfig, layer: int, item: int) -> int:
    """Returns the number of bytes that a token adds to the state of a layer: keys and values, a latent vector, or
    `DeltaRows`; and those of the layer's own input.
    """
    net, latent = config.delta_net, config.latent
    if net is not None and config.is_recurrent(layer):
        return 4 * (net.keys + net.values + net.num_value_heads) + item * net.channels
    if latent is not None:
        return item * (latent.rank + config.head_dim)
    layer_config = config.layer(layer)
    kv = 0 if config.kv_of(layer) == "none" else 2 * layer_config.num_key_value_heads * layer_config.head_dim
    return item * (kv + config.layer_input_size)
