"""Meshes: parsing, and checks that they divide a model."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax import P
from jax.sharding import AxisType, Mesh, NamedSharding

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.sharding.rules import AXES, DATA, HEAD, MODEL, STATE, TARGET, Rules, axes_of, fitting, map_paths, spec_of

Tree = TypeVar("Tree")
LOCAL = "local:"  # prefix of a mesh of this process's devices


@dataclasses.dataclass(frozen=True)
class Sharding:
    """A mesh with the rules that shard arrays over it; custom rules replace the default ones.

    Attributes:
        mesh: mesh with axes `data` and `model`.
        target, head: rules of weights, for paths such as `layers_0/self_attn/o_proj/weight`.
        state: rules of requests' state, for paths such as `cache/layers/0/k`.
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
                is_pair = isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], str)
                if (
                    not is_pair
                    or not isinstance(rule[1], P)
                    or not {a for part in rule[1] for a in axes_of(part)} <= {*AXES}
                ):
                    raise ValueError(f"{name} rule {rule!r}; expected a pattern of paths and a jax.P of {AXES}")
        auto = Mesh(self.mesh.devices, AXES, axis_types=(AxisType.Auto,) * 2)  # make_mesh's own default is Explicit
        object.__setattr__(self, "mesh", auto)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of devices along each axis."""
        return dict(self.mesh.shape)

    def named(self, rules: Rules, path: str, shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of an array with this path and shape."""
        return NamedSharding(self.mesh, fitting(spec_of(rules, path), shape, self.sizes))

    def put(self, tree: Tree, rules: Rules) -> Tree:
        """Returns the arrays, sharded by the rules."""
        return map_paths(lambda path, leaf: _put(leaf, self.named(rules, path, leaf.shape)), tree)

    def keep(self, tree: Tree, rules: Rules) -> Tree:
        """Constrains traced arrays to the sharding of the rules."""
        return map_paths(
            lambda path, leaf: jax.lax.with_sharding_constraint(leaf, self.named(rules, path, leaf.shape)), tree
        )


def sharding_of(mesh: Any, config: LlamaConfig) -> Sharding | None:
    """Makes the sharding for a mesh option and a target.

    Args:
        mesh: `"data:2,model:4"` (a missing axis has one device), "auto" (all devices; as many of them along `model` as
            divide the target), either with the prefix "local:" (only this process's devices), a `jax.sharding.Mesh`, a
            `Sharding`, or None for one device.

    Raises:
        ValueError: the mesh is invalid, has more devices than there are, or does not divide the target.
    """
    if mesh is None:
        return None
    if isinstance(mesh, Sharding):
        sharding = mesh
    elif isinstance(mesh, Mesh):
        sharding = Sharding(mesh)
    elif isinstance(mesh, str):
        sharding = Sharding(_named(mesh, config))
    else:
        raise ValueError(f'mesh={mesh!r} is no mesh; expected text such as "data:2,model:4", "auto", or a jax Mesh')
    check(config, sharding.sizes)
    return sharding


def parse(text: str) -> dict[str, int]:
    """Parses "data:2,model:4" to `{"data": 2, "model": 4}`."""
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
    """Raises ValueError for a mesh that does not divide the target: every device would compute undivided parts."""
    parts, widths = sizes[MODEL], ((width, "columns of the MLP") for width in _widths(config))
    for size, name in ((config.num_attention_heads, "attention heads"), *widths):
        if size % parts:
            raise ValueError(
                f"model:{parts} does not divide the target's {size} {name}; give the model axis one of "
                f"{', '.join(map(str, model_sizes(config)))} devices, and the rest to data"
            )
    for kv in _key_value_heads(config):
        if kv % parts and parts % kv:
            raise ValueError(
                f"model:{parts} neither divides the target's {kv} key/value heads nor is a multiple of them; give the "
                f"model axis one of {', '.join(map(str, model_sizes(config)))} devices, and the rest to data"
            )


def model_sizes(config: LlamaConfig) -> list[int]:
    """Returns the sizes of the model axis that divide a target, ascending."""
    dimensions = config.num_attention_heads, *_widths(config)
    divisors = (n for n in range(1, dimensions[0] + 1) if not any(size % n for size in dimensions))
    return [n for n in divisors if all(kv % n == 0 or n % kv == 0 for kv in _key_value_heads(config))]


def _widths(config: LlamaConfig) -> list[int]:
    """Returns the width of the MLP or experts, and of an MLP in parallel with experts."""
    if config.experts is None:
        return [config.intermediate_size]
    parallel = [config.intermediate_size] if config.experts.parallel_mlp else []
    return [config.experts.moe_intermediate_size, *parallel]


def _key_value_heads(config: LlamaConfig) -> list[int]:
    """Returns the numbers of key/value heads: of most layers, and of layers that differ (`by_layer`)."""
    return [config.num_key_value_heads, *([] if config.by_layer is None else [config.by_layer.num_key_value_heads])]


def repeats(config: LlamaConfig, sizes: Mapping[str, int]) -> int:
    """Returns the number of copies of each key/value head, so that every device along `model` has one."""
    return _times(config.num_attention_heads, config.num_key_value_heads, sizes)


def with_repeated_kv_heads(config: LlamaConfig, sizes: Mapping[str, int]) -> LlamaConfig:
    """Returns the config of the same model with repeated key/value heads."""
    part = config.by_layer
    if part is not None:
        kv = part.num_key_value_heads
        part = dataclasses.replace(part, num_key_value_heads=kv * _times(config.num_attention_heads, kv, sizes))
        config = dataclasses.replace(config, by_layer=part)
    kv = config.num_key_value_heads * repeats(config, sizes)
    return config if kv == config.num_key_value_heads else dataclasses.replace(config, num_key_value_heads=kv)


def _times(heads: int, kv: int, sizes: Mapping[str, int]) -> int:
    parts = sizes[MODEL]
    return parts // kv if parts % kv == 0 and heads % parts == 0 else 1


def _named(text: str, config: LlamaConfig) -> Mesh:
    """Returns the mesh of the first devices; a mesh over several processes must have all devices."""
    sizes_text = text.removeprefix(LOCAL)
    devices = jax.devices() if sizes_text == text else jax.local_devices()
    processes = len({device.process_index for device in devices})
    sizes = _auto(config, len(devices)) if sizes_text == "auto" else parse(sizes_text)
    num_devices = math.prod(sizes.values())
    if num_devices > len(devices) or (processes > 1 and num_devices != len(devices)):
        note = f", over {processes} processes that all have to take part" if processes > 1 else ""
        raise ValueError(
            f"mesh={text!r} takes {num_devices} devices and there are {len(devices)}{note}; choose sizes that "
            f'multiply to {len(devices)}, or "auto"'
        )
    shape = tuple(sizes[axis] for axis in AXES)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 2, devices=devices[:num_devices])


def _auto(config: LlamaConfig, devices: int) -> dict[str, int]:
    """Returns a mesh of all devices with as many as possible along `model`, which has the lowest latency."""
    parts = max(part for part in model_sizes(config) if devices % part == 0)
    return {DATA: devices // parts, MODEL: parts}


def _put(leaf: Any, where: NamedSharding) -> Any:
    """Shards an array; a host array that every process holds becomes one global array."""
    if where.is_fully_addressable or isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, where)
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, where, lambda index: value[index])
