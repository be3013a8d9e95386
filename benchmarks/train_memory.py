"""How much memory does an update of a training run take on each chip?

What is kept between updates (target, head, moments) is counted exactly, from shapes alone. With `--topology`, the
update is also compiled, with the real TPU compiler for chips that are not there (`pip install libtpu` beside JAX is
enough), and what it needs for a moment is what the compiler assigns; that takes minutes. `--layers` compiles fewer of
the target's layers: they are frozen, so each adds its weights and nothing else, and the rest are counted.

    python benchmarks/train_memory.py recipes/large/llama31_8b_eagle3.yaml
    python benchmarks/train_memory.py recipes/large/llama31_8b_eagle3_tpu.yaml --topology v5e:2x4 --layers 2
"""

import argparse
import dataclasses
import math
import os
import time
from unittest import mock

os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")

import jax  # noqa: E402  # after the environment that libtpu reads
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import AxisType, Mesh  # noqa: E402
from tpu_compile import gigabytes, placed  # noqa: E402

import eagle_jax  # noqa: E402, F401  # its guard comes before the first computation
from eagle_jax.converters import PAIRS  # noqa: E402
from eagle_jax.models.lm import LM  # noqa: E402
from eagle_jax.sharding import AXES, DATA, HEAD, TARGET, Sharding, bytes_per_device, parse, widened  # noqa: E402
from eagle_jax.training import heads, optimizer  # noqa: E402
from eagle_jax.training.config import read_config  # noqa: E402
from eagle_jax.training.update import begin, compiled_update, without_params  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", help="file of settings for `eagle-jax train`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting over the file's")
    parser.add_argument("--mesh", help="the file's by default")
    parser.add_argument("--topology", help="compile for these chips, such as v5e:2x4")
    parser.add_argument("--layers", type=int, help="compile so many of the target's")
    options = parser.parse_args()
    config = read_config(options.settings, options.set)
    whole = next(pair.target_sizes.config for pair in PAIRS if pair.target == config.target)
    sizes = parse(options.mesh or config.mesh or "data:1")
    head, rule = heads.shapes(config.head, whole), optimizer.make(config.optimizer, config.steps)
    state = jax.eval_shape(lambda: begin(_zeros(head), rule, jax.random.key(0)))
    kept = bytes_per_device(_target(whole, sizes).params, TARGET, sizes), bytes_per_device(state, HEAD, sizes)
    print(f"{options.settings}, {sizes}, on each chip")
    print(f"target {gigabytes(kept[0])}; head and optimizer {gigabytes(kept[1])}; together {gigabytes(sum(kept))}")
    if options.topology is None:
        return

    devices = topologies.get_topology_desc(platform="tpu", topology_name=options.topology).devices
    grid = np.array(devices[: math.prod(sizes.values())]).reshape(tuple(sizes[axis] for axis in AXES))
    over = Sharding(Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 2))
    started = time.perf_counter()
    with mock.patch("jax.default_backend", return_value="tpu"):
        given = shapes(config, whole, options.layers or whole.num_hidden_layers, head, state, over)
        fixed = {"rule": rule, "objective": config.objective, "remat": config.remat, "over": over}
        memory = compiled_update().lower(*given, **fixed).compile().memory_analysis()
    moment = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    print(f"for a moment {gigabytes(moment)} on {options.topology}; with it {gigabytes(sum(kept) + moment)}", end="")
    print(f" (compiled in {time.perf_counter() - started:.0f} s)")


def shapes(config, whole, layers, head, state, over):
    """What an update is given, of shapes, in their places."""
    target = placed(_target(dataclasses.replace(whole, num_hidden_layers=layers), over.sizes), over, over.target)
    if head.taps:
        taps = tuple(round(tap * layers / whole.num_hidden_layers) for tap in head.taps)
        head = dataclasses.replace(head, config=dataclasses.replace(head.config, taps=taps))
    rows = config.accumulate, config.batch, config.data.length
    where = jax.NamedSharding(over.mesh, jax.P(None, DATA))
    text = [jax.ShapeDtypeStruct(rows, dtype, sharding=where) for dtype in (jnp.int32, jnp.bool_)]
    return placed(state, over, over.head), placed(without_params(head), over, over.head), target, *text


def _zeros(head):
    """The head with weights, for what is traced."""
    return dataclasses.replace(head, params=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), head.params))


def _target(config, sizes) -> LM:
    """The frozen target in bfloat16, as it lies in files."""
    return jax.eval_shape(lambda: LM.init(widened(config, sizes), jax.random.key(0), jnp.bfloat16))


if __name__ == "__main__":
    main()
