"""One program over many devices: a mesh, tables of how arrays lie on it, and weights that go straight to their places.

A mesh has two axes. Requests are spread over `data`; attention heads, the MLP's width and the vocabulary over `model`:

    data:2,model:2          model 0                     model 1
        data 0      heads 0, 1 of rows 0, 1     heads 2, 3 of rows 0, 1
        data 1      heads 0, 1 of rows 2, 3     heads 2, 3 of rows 2, 3

Nothing but arrays is spread: the program is the one that runs on a single device, and XLA puts the communication in
between (Auto axes). Within a decoder layer that is one sum over `model` behind attention and one behind the MLP; caches
never travel.

A target with fewer key/value heads than `model` has devices keeps each of them several times, beside its own share of
the queries: a whole cache on every device would cost more memory than the mesh saves.
"""

import contextvars
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.sharding import AxisType, Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from eagle_jax.config import LlamaConfig

DATA, MODEL = "data", "model"
AXES = (DATA, MODEL)

Rules = tuple[tuple[str, P], ...]
Tree = TypeVar("Tree")

# Ordered tables: the first pattern (re.search) that is found in an array's path decides. An axis that does not divide
# its dimension is left out. Weights lie as in files, `weight [out, in]`, or as for decoding (models/layout.py): `kernel
# [in, out]`, qkv_proj `[k, g + 2, c, in]`, gate_up_proj `[2, out, in]`.
_LAYERS: Rules = (
    (r"self_attn/[qkv]_proj/weight$", P(MODEL, None)),
    (r"self_attn/[qkv]_proj/bias$", P(MODEL)),
    (r"self_attn/qkv_proj/kernel$", P(None, MODEL)),
    (r"self_attn/qkv_proj/", P(MODEL)),
    (r"(o|down)_proj/weight$", P(None, MODEL)),
    (r"(o|down)_proj/kernel$", P(MODEL, None)),
    (r"mlp/(gate|up)_proj/weight$", P(MODEL, None)),
    (r"mlp/(gate|up)_proj/kernel$", P(None, MODEL)),
    (r"mlp/(gate|up)_proj/bias$", P(MODEL)),
    (r"mlp/gate_up_proj/kernel$", P(None, None, MODEL)),
    (r"mlp/gate_up_proj/", P(None, MODEL)),
)
_VOCABULARY: Rules = (
    (r"embed_tokens/embedding$", P(MODEL, None)),
    (r"lm_head/weight$", P(MODEL, None)),
    (r"lm_head/kernel$", P(None, MODEL)),
)
_WHOLE: Rules = ((r"", P()),)  # norms, routers, biases of sums, draft vocabularies

TARGET: Rules = (
    *_VOCABULARY,
    (r"mlp/experts/(gate|up)$", P(None, MODEL, None)),  # every device has a slice of every expert: loads are even
    (r"mlp/experts/down$", P(None, None, MODEL)),
    *_LAYERS,
    *_WHOLE,
)
HEAD: Rules = (
    *_VOCABULARY,
    (r"fc/weight$", P(None, MODEL)),
    (r"fc/kernel$", P(MODEL, None)),
    *_LAYERS,
    *_WHOLE,
)
# Requests, caches, drafters' states, trees and everything else that has a row for each request.
STATE: Rules = (
    (r"(^|/)stop_ids$", P()),
    (r"(^|/)[kv]/\d+$", P(DATA, MODEL)),
    (r"", P(DATA)),
)


@dataclasses.dataclass(frozen=True)
class Sharding:
    """A mesh with the tables of what lies where; tables of one's own take the place of ours.

    Attributes:
        mesh: with axes `data` and `model`.
        target, head: weights, by path: `layers_0/self_attn/o_proj/weight`.
        state: requests and what is remembered of them: `cache/k/0`.
    """

    mesh: Mesh
    target: Rules = TARGET
    head: Rules = HEAD
    state: Rules = STATE

    def __post_init__(self):
        if tuple(self.mesh.axis_names) != AXES:
            raise ValueError(f"a mesh with axes {tuple(self.mesh.axis_names)}; expected {AXES}, in this order")
        for name in ("target", "head", "state"):
            for rule in getattr(self, name):
                pair = isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], str)
                if (
                    not pair
                    or not isinstance(rule[1], P)
                    or not {a for part in rule[1] for a in _axes(part)} <= {*AXES}
                ):
                    raise ValueError(f"{name} rule {rule!r}; expected a pattern of paths and a jax.P of {AXES}")
        auto = Mesh(self.mesh.devices, AXES, axis_types=(AxisType.Auto,) * 2)  # make_mesh's own default is Explicit
        object.__setattr__(self, "mesh", auto)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Devices along each axis."""
        return dict(self.mesh.shape)

    def named(self, rules: Rules, path: str, shape: Sequence[int]) -> NamedSharding:
        """Where an array of this path and shape lies."""
        return NamedSharding(self.mesh, fitting(spec_of(rules, path), shape, self.sizes))

    def put(self, tree: Tree, rules: Rules) -> Tree:
        """The same arrays, in their places."""
        return _map(lambda path, leaf: _put(leaf, self.named(rules, path, leaf.shape)), tree)


def spec_of(rules: Rules, path: str) -> P:
    """The first rule's whose pattern is found in the path; an array that no rule names is everywhere whole."""
    return next((spec for pattern, spec in rules if re.search(pattern, path)), P())


def fitting(spec: P, shape: Sequence[int], sizes: Mapping[str, int]) -> P:
    """`spec` without axes that do not divide their dimension, or that the array has no dimension for."""
    named = zip(shape, spec, strict=False)
    kept = [axes if size % math.prod(sizes[axis] for axis in _axes(axes)) == 0 else None for size, axes in named]
    while kept and kept[-1] is None:
        kept.pop()
    return P(*kept)


def per_device(spec: P, shape: Sequence[int], sizes: Mapping[str, int]) -> int:
    """Numbers of an array that each device holds."""
    parts = (math.prod(sizes[axis] for axis in _axes(axes)) for axes in fitting(spec, shape, sizes))
    return math.prod(shape) // math.prod(parts)


def bytes_per_device(tree: Any, rules: Rules, sizes: Mapping[str, int]) -> int:
    """Memory that arrays, or their shapes, take on each device."""

    def held(path: str, leaf: Any) -> int:
        return per_device(spec_of(rules, path), leaf.shape, sizes) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(_map(held, tree)))


def sharding_of(mesh: Any, config: LlamaConfig) -> Sharding | None:
    """What was asked for as a mesh, for a target of this kind.

    Args:
        mesh: `"data:2,model:4"` (an axis that is not named has one device), "auto" (all devices; as many of them along
            `model` as divide the target), a `jax.sharding.Mesh`, a `Sharding`, or None for one device.

    Raises:
        ValueError: no mesh, one with more devices than there are, or one that does not divide the target.
    """
    if mesh is None:
        return None
    if isinstance(mesh, Sharding):
        asked = mesh
    elif isinstance(mesh, Mesh):
        asked = Sharding(mesh)
    elif isinstance(mesh, str):
        asked = Sharding(_make(_auto(config, jax.device_count()) if mesh == "auto" else parse(mesh), mesh))
    else:
        raise ValueError(f'mesh={mesh!r} is no mesh; expected text such as "data:2,model:4", "auto", or a jax Mesh')
    check(config, asked.sizes)
    return asked


def parse(text: str) -> dict[str, int]:
    """`{"data": 2, "model": 4}` of "data:2,model:4"."""
    sizes = dict.fromkeys(AXES, 1)
    parts = [re.fullmatch(r"\s*(\w+)\s*[:=]\s*(\d+)\s*", part) for part in text.split(",")]
    names = [part[1] for part in parts if part]
    if len(names) < len(parts) or len(set(names)) < len(names) or not set(names) <= set(AXES):
        raise ValueError(
            f'mesh={text!r} is no mesh; expected the sizes of its axes, such as "data:2,model:4", or "auto"'
        )
    sizes |= {part[1]: int(part[2]) for part in parts if part}
    if min(sizes.values()) < 1:
        raise ValueError(f"mesh={text!r} has an axis of no devices; expected at least 1 along each")
    return sizes


def check(config: LlamaConfig, sizes: Mapping[str, int]) -> None:
    """Refuses a mesh that does not divide the target: what is not divided would be on every device, and computed there.

    Raises:
        ValueError: names the size that is not divided.
    """
    parts, experts = sizes[MODEL], config.experts
    width = config.intermediate_size if experts is None else experts.moe_intermediate_size
    for size, of in ((config.num_attention_heads, "attention heads"), (width, "columns of the MLP")):
        if size % parts:
            raise ValueError(
                f"model:{parts} does not divide the target's {size} {of}; give the model axis one of "
                f"{', '.join(map(str, model_sizes(config)))} devices, and the rest to data"
            )
    kv = config.num_key_value_heads
    if kv % parts and parts % kv:
        raise ValueError(
            f"model:{parts} neither divides the target's {kv} key/value heads nor is a multiple of them; give the "
            f"model axis one of {', '.join(map(str, model_sizes(config)))} devices, and the rest to data"
        )


def repeats(config: LlamaConfig, sizes: Mapping[str, int]) -> int:
    """How many times each key/value head is kept, so that every device along `model` has one."""
    parts, kv = sizes[MODEL], config.num_key_value_heads
    return parts // kv if parts % kv == 0 and config.num_attention_heads % parts == 0 else 1


def widened(config: LlamaConfig, sizes: Mapping[str, int]) -> LlamaConfig:
    """The config of the same model with repeated key/value heads."""
    kv = config.num_key_value_heads * repeats(config, sizes)
    return config if kv == config.num_key_value_heads else dataclasses.replace(config, num_key_value_heads=kv)


Place = Callable[[str, np.ndarray], jax.Array]


def placing(over: Sharding, rules: Rules, config: LlamaConfig) -> Place:
    """Puts a weight that was just read into its shards: each device gets its part, and no other device is passed.

    Args:
        config: of the layers that are read; `widened` is the config of what is placed.
    """
    times, heads = repeats(config, over.sizes), config.num_key_value_heads

    def place(path: str, value: np.ndarray) -> jax.Array:
        if times > 1 and re.search(r"self_attn/[kv]_proj/", path):
            by_head = value.reshape(heads, -1, *value.shape[1:])
            value = np.repeat(by_head, times, axis=0).reshape(-1, *value.shape[1:])
        where = over.named(rules, path, value.shape)
        return jax.make_array_from_callback(value.shape, where, lambda index: value[index])

    return place


def place_all(params: Tree, place: Place) -> Tree:
    """Weights that were read already, into their shards."""
    return _map(lambda path, leaf: place(path, np.asarray(leaf)), params)


_current: contextvars.ContextVar[Sharding | None] = contextvars.ContextVar("sharding", default=None)


def spread(program: Callable[..., Tree]) -> Callable[..., Tree]:
    """A program over the devices of its keyword `over`, which has to be static in its `jit`.

    While it is traced, `constrain` and `top_k` go by it; what the program returns lies where the next one wants it.
    """

    @functools.wraps(program)
    def run(*args: Any, **fixed: Any) -> Tree:
        token = _current.set(fixed.get("over"))
        try:
            return constrain(program(*args, **fixed))
        finally:
            _current.reset(token)

    return run


def constrain(tree: Tree) -> Tree:
    """States and caches stay where they are: without this, XLA would choose anew in every program."""
    held = _current.get()
    if held is None:
        return tree
    state = held.state
    return _map(lambda path, x: jax.lax.with_sharding_constraint(x, held.named(state, path, x.shape)), tree)


def top_k(values: Float[Array, "*rows v"], k: int) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """`lax.top_k` over a vocabulary: the best of each device's part, then of those; only they travel."""
    over, size = _current.get(), values.shape[-1]
    if over is None:
        best, ids = jax.lax.top_k(values, k)
        return best, ids
    spec = fitting(P(DATA, *[None] * (values.ndim - 2), MODEL), values.shape, over.sizes)
    parts = over.sizes[MODEL] if len(spec) == values.ndim else 1
    if parts == 1 or size // parts < k:
        best, ids = by_row(lambda x: jax.lax.top_k(x, k))(values)
        return best, ids

    def best_of_all(part: Array) -> tuple[Array, Array]:
        values, ids = jax.lax.top_k(part, k)
        ids += jax.lax.axis_index(MODEL) * part.shape[-1]
        values, ids = (jax.lax.all_gather(x, MODEL, axis=x.ndim - 1, tiled=True) for x in (values, ids))
        values, pick = jax.lax.top_k(values, k)
        return values, jnp.take_along_axis(ids, pick, axis=-1)

    whole = fitting(P(DATA), values.shape, over.sizes)
    return jax.shard_map(best_of_all, mesh=over.mesh, in_specs=spec, out_specs=whole, check_vma=False)(values)


def by_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays with a row for each request, where rows do not meet: each device works on its own.

    XLA does not know of sorts and searches that their rows are independent, and would gather them all.
    """
    over = _current.get()
    if over is None:
        return function

    def run(*arrays: Array) -> Any:
        rows = fitting(P(DATA), arrays[0].shape, over.sizes)
        return jax.shard_map(function, mesh=over.mesh, in_specs=rows, out_specs=rows, check_vma=False)(*arrays)

    return run


def added_up(function: Callable[[Any, Any], Array], rows: Any, weights: Any, specs: Any) -> Array:
    """`function(rows, weights)`, which is a sum over what `specs` spread along `model`, where rows do not meet.

    Each device works on its own rows with its own part of the weights, and what they make is added up once.
    """
    held = _current.get()
    if held is None:
        return function(rows, weights)
    parts = jax.tree.map(lambda weight, spec: fitting(spec, weight.shape, held.sizes), weights, specs)
    if any(part == P() for part in jax.tree.leaves(parts)):
        return function(rows, weights)  # the axis does not divide them
    spread_rows = jax.tree.map(lambda row: fitting(P(DATA), row.shape, held.sizes), rows)

    def summand(rows: Any, weights: Any) -> Array:
        return jax.lax.psum(function(rows, weights), MODEL)

    given = (spread_rows, parts)
    out = jax.tree.leaves(spread_rows)[0]
    return jax.shard_map(summand, mesh=held.mesh, in_specs=given, out_specs=out, check_vma=False)(rows, weights)


def to_host(tree: Any) -> Any:
    """Values as numpy arrays, on every process; what another process holds is fetched from there."""
    whole = all(leaf.is_fully_addressable or leaf.is_fully_replicated for leaf in jax.tree.leaves(tree))
    return jax.tree.map(np.asarray, tree if whole else _gathered(tree))


@functools.lru_cache(maxsize=1024)
def placement(sharding: Any) -> Any:
    """What two shardings have in common that a compiled program takes for the same."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    spread = [tuple(axis for axis in _axes(axes) if sharding.mesh.shape[axis] > 1) for axes in sharding.spec]
    while spread and not spread[-1]:
        spread.pop()
    return sharding.mesh, tuple(spread)


def _put(leaf: Any, where: NamedSharding) -> Any:
    """An array to where it belongs; one that every process made for itself becomes one array over all of them."""
    if where.is_fully_addressable or not leaf.is_fully_addressable:
        return jax.device_put(leaf, where)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(leaf), where), impl=jax.random.key_impl(leaf))
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, where, lambda index: value[index])


def _gathered(tree: Any) -> Any:
    mesh = jax.tree.leaves(tree)[0].sharding.mesh
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(tree)


def _make(sizes: Mapping[str, int], text: str) -> Mesh:
    """The mesh of the first devices; of all of them where there are several processes."""
    wanted, devices = math.prod(sizes.values()), jax.devices()
    if wanted > len(devices) or (jax.process_count() > 1 and wanted != len(devices)):
        all_of = f", over {jax.process_count()} processes that all have to take part" if jax.process_count() > 1 else ""
        raise ValueError(
            f"mesh={text!r} takes {wanted} devices and there are {len(devices)}{all_of}; choose sizes that multiply "
            f'to {len(devices)}, or "auto"'
        )
    shape = tuple(sizes[axis] for axis in AXES)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 2, devices=devices[:wanted])


def _auto(config: LlamaConfig, devices: int) -> dict[str, int]:
    """All devices, along `model` as many as divide the target: a request's answer comes soonest so."""
    parts = max(part for part in model_sizes(config) if devices % part == 0)
    return {DATA: devices // parts, MODEL: parts}


def model_sizes(config: LlamaConfig) -> list[int]:
    """Sizes of the model axis that divide a target of this kind, ascending."""
    width = config.intermediate_size if config.experts is None else config.experts.moe_intermediate_size
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    fits = (n for n in range(1, heads + 1) if heads % n == 0 and width % n == 0)
    return [n for n in fits if kv % n == 0 or n % kv == 0]


def _axes(axes: Any) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _map(function: Callable[[str, Any], Any], tree: Any) -> Any:
    def at(path: Any, leaf: Any) -> Any:
        return function(jax.tree_util.keystr(path, simple=True, separator="/"), leaf)

    return jax.tree_util.tree_map_with_path(at, tree)
