"""How much memory does an update of a training run take on each chip?

What is kept between updates (target, head, moments) is counted exactly, from shapes alone. With `--topology`, the
update is also compiled by the TPU compiler, for chips that are not there (`pip install libtpu` beside JAX is enough),
and its temporary memory is what the compiler assigns; that takes minutes. `--layers` compiles fewer of the target's
layers: they are frozen, so each adds its weights and nothing else, and the rest are counted.

    python -m benchmarks.train.memory recipes/large/llama31_8b_eagle3.yaml
    python -m benchmarks.train.memory recipes/large/llama31_8b_eagle3_tpu.yaml --topology v5e:2x4 --layers 2
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common import command
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from benchmarks.compile_only.shapes import gigabytes, placed
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import PAIRS
from eagle_jax.models.lm import LM
from eagle_jax.sharding import AXES, DATA, HEAD, TARGET, Sharding, bytes_per_device, parse, with_repeated_kv_heads
from eagle_jax.training import eagle_heads, optimizer
from eagle_jax.training.config import read_config
from eagle_jax.training.update import begin, compiled_update, without_params


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("settings", help="file of settings for `eagle-jax train`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting over the file's")
    parser.add_argument("--mesh", help="the file's by default")
    parser.add_argument("--topology", help="compile for these chips, such as v5e:2x4")
    parser.add_argument("--layers", type=int, help="compile so many of the target's")
    options = parser.parse_args()
    config = read_config(options.settings, options.set)
    whole = next(pair.target_sizes.config for pair in PAIRS if pair.target == config.target)
    sizes = parse(options.mesh or config.mesh or "data:1")
    head, rule = eagle_heads.shapes(config.head, whole), optimizer.make(config.optimizer, config.steps)
    state = jax.eval_shape(
        lambda params: begin(dataclasses.replace(head, params=params), rule, jax.random.key(0)), head.params
    )
    kept = bytes_per_device(_target(whole, sizes).params, TARGET, sizes), bytes_per_device(state, HEAD, sizes)
    rows = [("target", kept[0]), ("head and optimizer", kept[1]), ("together", sum(kept))]
    if options.topology is not None:
        sharding = shapes.tpu_mesh(options.topology, [sizes[axis] for axis in AXES])
        with shapes.platform("tpu"):
            of = arguments(config, whole, options.layers or whole.num_hidden_layers, head, state, sharding)
            fixed = {"rule": rule, "objective": config.objective, "remat": config.remat, "sharding": sharding}
            memory = compiled_update().lower(*of, **fixed).compile().memory_analysis()
        temporary = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        rows += [(f"temporary, on {options.topology}", temporary), ("with it", sum(kept) + temporary)]
    show(f"{options.settings}, {sizes}", ("on each chip", "memory"), [(name, gigabytes(size)) for name, size in rows])


def arguments(
    config: Any, whole: LlamaConfig, layers: int, head: Any, state: Any, sharding: Sharding
) -> tuple[Any, ...]:
    """What an update is given, as shapes with shardings."""
    target = placed(
        _target(dataclasses.replace(whole, num_hidden_layers=layers), sharding.sizes), sharding, sharding.target
    )
    if head.taps:
        taps = tuple(round(tap * layers / whole.num_hidden_layers) for tap in head.taps)
        head = dataclasses.replace(head, config=dataclasses.replace(head.config, taps=taps))
    rows = config.accumulate, config.batch, config.data.length
    place = jax.NamedSharding(sharding.mesh, jax.P(None, DATA))
    text = [jax.ShapeDtypeStruct(rows, dtype, sharding=place) for dtype in (jnp.int32, jnp.bool_)]
    return placed(state, sharding, sharding.head), placed(without_params(head), sharding, sharding.head), target, *text


def _target(config: LlamaConfig, sizes: Any) -> LM:
    """The frozen target in bfloat16, laid out as in files."""
    return jax.eval_shape(lambda: LM.init(with_repeated_kv_heads(config, sizes), jax.random.key(0), jnp.bfloat16))


if __name__ == "__main__":
    command.begin(main)
