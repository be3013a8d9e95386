"""Does the decoding loop fit a TPU slice, and what travels between its chips?

Compiles the whole sharded loop (draft, target pass, draw, commit, in `lax.while_loop`) with the real TPU compiler for
a slice that is not there: `pip install libtpu` beside JAX is enough, no hardware. Of weights there are only shapes.
Prints the memory that the compiler assigns on each chip beside `eagle-jax plan`'s, and the collectives of one cycle.
Exits with 1 if the plan is off by more than a tenth, or if a cache or a whole vocabulary travels.

    python benchmarks/tpu_compile.py --target llama-3.1-8b-instruct --topology v5e:2x2 --mesh model:4
"""

import argparse
import collections
import contextlib
import os
import re
import time
from unittest import mock

os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")

import dataclasses  # noqa: E402  # after the environment that libtpu reads

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import AxisType, Mesh  # noqa: E402

import eagle_jax  # noqa: E402, F401  # its guard comes before the first computation
from eagle_jax.decoding.decode import advance, prefill  # noqa: E402
from eagle_jax.decoding.policy import DynamicTree  # noqa: E402
from eagle_jax.decoding.sampling import Sampling, Settings, request_keys  # noqa: E402
from eagle_jax.decoding.state import BatchParams  # noqa: E402
from eagle_jax.drafters.base import Plain  # noqa: E402
from eagle_jax.drafters.eagle import Eagle  # noqa: E402
from eagle_jax.models.quant import schemes_of  # noqa: E402
from eagle_jax.sharding import AXES, DATA, Sharding, parse, widened  # noqa: E402
from eagle_jax.tuning import plan  # noqa: E402

COLLECTIVE = r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models`")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--mesh", default="model:4")
    parser.add_argument("--quantize", help="int8, int4 or int4-128, draft:int8 and so on, as for `load`")
    parser.add_argument("--layers", type=int, help="fewer than the target has, for a quick look")
    parser.add_argument("--requests", type=int, default=8, help="for each group of chips along data")
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--tree", default="60,7,10", help='nodes,depth,top-k, or "none"')
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()

    config, head = plan.configs(options.target)
    if options.layers:
        config = dataclasses.replace(config, num_hidden_layers=options.layers)
        head = dataclasses.replace(head, taps=(0, 1, options.layers)) if hasattr(head, "taps") else head
    sizes = parse(options.mesh)
    policy = None if options.tree == "none" else DynamicTree(*map(int, options.tree.split(",")))
    devices = topologies.get_topology_desc(platform="tpu", topology_name=options.topology).devices
    grid = np.array(devices).reshape(tuple(sizes[axis] for axis in AXES))
    over = Sharding(Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 2))

    started = time.perf_counter()
    with mock.patch("jax.default_backend", return_value="tpu"):
        arguments, mode = shapes(config, head if policy else None, policy, over, options)
        program = jax.jit(advance, static_argnames=("mode", "over"), donate_argnames=("state",))
        lowered = program.lower(*arguments, jax.ShapeDtypeStruct((), jnp.int32), mode=mode, over=over)
    traced = time.perf_counter()
    compiled = lowered.compile()
    print(f"{options.target} on {options.topology}, {options.mesh}: ", end="")
    print(f"traced in {traced - started:.0f} s, compiled in {time.perf_counter() - traced:.0f} s")

    memory = compiled.memory_analysis()
    kept, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    asked = options.requests, options.slots, policy.nodes if policy else 1, jnp.bfloat16
    planned = plan.of_configs(config, head if policy else None, sizes, *asked, *schemes_of(options.quantize))
    wanted = planned.total - planned.buffers
    print(f"weights and caches per chip: {gigabytes(kept)} compiled, {gigabytes(wanted)} planned")
    print(f"everything per chip: {gigabytes(kept + temporary)} compiled, {gigabytes(planned.total)} planned")
    print(f"updated in place: {gigabytes(memory.alias_size_in_bytes)} of {gigabytes(planned.cache)} of caches")

    text = compiled.as_text()
    travels = collections.Counter(
        (kind, re.sub(r"\{[^}]*\}|/\*.*?\*/", "", shape)) for shape, kind in re.findall(COLLECTIVE, text)
    )
    for (kind, shape), count in sorted(travels.items()):
        print(f"  {count:4} {kind} {shape}")
    dims = [tuple(map(int, part.split(","))) for _, shape in travels for part in re.findall(r"\[([\d,]+)\]", shape)]
    stray = [shape for shape in dims if (len(shape) == 4 and shape[2] == options.slots) or config.vocab_size in shape]
    off = abs(kept + temporary - planned.total) / planned.total
    print(f"off the plan by {off:.1%}; caches or whole vocabularies that travel: {stray or 'none'}")
    raise SystemExit(int(off > 0.1 or bool(stray)))


def shapes(config, head, policy, over, options):
    """Everything that the loop is given, of shapes, in their places."""
    config = widened(config, over.sizes)
    scheme, head_scheme = schemes_of(options.quantize)
    target = placed(plan.target_shapes(config, jnp.bfloat16, scheme), over, over.target)
    drafter = Plain()
    if head is not None:
        head = dataclasses.replace(head, layers=widened(head.layers, over.sizes))
        drafter = placed(Eagle(head=plan.head_shapes(head, jnp.bfloat16, head_scheme), policy=policy), over, over.head)
    rows, mode = options.requests * over.sizes[DATA], Sampling(sampled=options.temperature > 0, filtered=False)
    numbers, whole = jnp.zeros(rows, jnp.float32), jnp.ones(rows, jnp.int32)
    settings = Settings(numbers, whole, numbers, numbers, request_keys([0] * rows, [0] * rows))
    request, tokens = jax.eval_shape(
        lambda: (BatchParams(settings, whole, whole, whole), jnp.zeros((rows, options.slots + 16), jnp.int32))
    )
    request = placed(request, over, over.state)
    fixed = dict(mode=mode, slots=options.slots, chunk=256, logprobs=False, over=over)
    state = jax.eval_shape(lambda *given: prefill(*given, **fixed), target, drafter, request, tokens)
    return (target, drafter, request, placed(state, over, over.state)), mode


def placed(tree, over, rules):
    """The same shapes, with the places of their arrays."""

    def one(path, leaf):
        where = over.named(rules, jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree_util.tree_map_with_path(one, tree)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3f} GB"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
