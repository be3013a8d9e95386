"""What does a cycle cost on a TPU beside a plain step, does the cache stay where it is, and which attention is cheaper?

Compiles for chips that are not there: `pip install libtpu` beside JAX is enough, no hardware. Of weights there are only
shapes. Prints a Markdown table of predicted times, or with `--memory` one of whole loops; exits with 1 then if a loop
holds a copy of a cache, or takes more than 15 % of memory on top of weights and caches.

Times are the compiler's `optimal_seconds`: bytes over bandwidth or operations over throughput of each operation,
whichever is longer, and for our kernel the bytes and operations that it states. They know nothing of what starting an
operation costs, nor of sorts and searches. Layers are alike: a cycle of one is compiled, and the others are added.
What is fetched ahead into fast memory the compiler counts five times, since the copy reads and writes twice: programs
are compiled to do so as little as may be, and four are taken off again.

    python benchmarks/tpu_kernel.py --chips v5e,v5p,v6e --nodes 16,60,256,1024
    python benchmarks/tpu_kernel.py --chips v5e,v5p,v6e --nodes 60 --memory
"""

import argparse
import dataclasses
import math
import os
import re
from unittest import mock

import tpu_compile  # before JAX: it sets what libtpu reads

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from eagle_jax.decoding.decode import advance, step
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.ops import VARIABLE
from eagle_jax.sharding import AXES, Sharding, spread
from eagle_jax.tuning import plan

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
TREES = {16: (16, 5, 4), 60: (60, 7, 10), 256: (256, 7, 10), 1024: (1024, 7, 16)}
BACKENDS = ("tree_attention:tpu", "tree_attention:xla")
NOT_AHEAD = {"xla_msa_max_outstanding_prefetches": 0}  # all but one matrix stay where they are until they are used
SIZES = {"bf16": 2, "f32": 4, "s32": 4, "u32": 4, "s8": 1, "pred": 1}
BANDWIDTH = {"v5e": 819e9, "v5p": 2765e9, "v6e": 1640e9}  # bytes in a second, as the compiler has it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models`")
    parser.add_argument("--chips", default="v6e", help=f"of {', '.join(TOPOLOGIES)}")
    parser.add_argument("--nodes", default="16,60", help=f"of {', '.join(map(str, TREES))}")
    parser.add_argument("--attention", default=",".join(BACKENDS), help="of the backends of eagle_jax.ops")
    parser.add_argument("--slots", type=int, default=2048, help="of the cache, all of them used")
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--quantize", help="as for `load`: int8, int4 or int4-128, or draft:int8 and so on")
    parser.add_argument("--memory", action="store_true", help="compile whole loops and look at their memory instead")
    options = parser.parse_args()
    options.temperature = 0.0
    chips, nodes = options.chips.split(","), [int(part) for part in options.nodes.split(",")]
    rounded = f", {options.quantize}" if options.quantize else ""
    print(f"{options.target}, {options.requests} request(s), {options.slots} slots, bfloat16{rounded}\n")
    if options.memory:
        print("| chips | nodes | weights and caches | everything | more | copies of a cache |\n" + "|---" * 6 + "|")
        failed = [memory(chip, count, options) for chip in chips for count in nodes]
        raise SystemExit(int(any(failed)))
    print(f"| chip | attention | plain step | {' | '.join(f'cycle of {count} nodes' for count in nodes)} |")
    print("|---" * (3 + len(nodes)) + "|", flush=True)
    for chip in chips:
        for backend in options.attention.split(","):
            os.environ[VARIABLE] = backend
            plain, *trees = (cycle(chip, count, options) for count in (None, *nodes))
            cells = (f"{1e3 * tree:.2f} ms ({tree / plain:.2f}x)" for tree in trees)
            print(f"| {chip} | {backend} | {1e3 * plain:.2f} ms | {' | '.join(cells)} |", flush=True)


def cycle(chip: str, nodes: int | None, options: argparse.Namespace) -> float:
    """Seconds of a whole cycle, draft included; of a plain step without nodes."""
    over = mesh_of(chip, 1)
    given, mode = given_to(1, nodes, over, options)

    def one(target, drafter, request, state, *, over):
        return step(target, drafter, request, state, mode)

    program = jax.jit(spread(one), static_argnames=("over",), donate_argnums=(3,))
    of_one_layer = seconds_of(chip, compiled(program, given, NOT_AHEAD, over=over))
    return of_one_layer + (layers_of(options) - 1) * layer(chip, nodes or 1, options)


def layer(chip: str, nodes: int, options: argparse.Namespace) -> float:
    """Seconds of one more layer of the target over so many rows: two against one, drafts and logits left out."""

    def forward(target, tokens, visible, state, *, over):
        positions = state.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        output = target.forward(tokens, positions, visible, state.cache)
        return output.hidden, output.kv

    over, times = mesh_of(chip, 1), []
    for layers in (1, 2):
        (target, _, _, state), _ = given_to(layers, None, over, options)
        tokens = jax.ShapeDtypeStruct((options.requests, nodes), jnp.int32)
        visible = jax.ShapeDtypeStruct((options.requests, nodes, nodes), jnp.bool_)
        rows = tpu_compile.placed((tokens, visible), over, over.state)
        program = jax.jit(spread(forward), static_argnames=("over",))
        times.append(seconds_of(chip, compiled(program, (target, *rows, state), NOT_AHEAD, over=over)))
    return times[1] - times[0]


def seconds_of(chip: str, program) -> float:
    """What is predicted; an operation whose cost is not known takes a second off."""
    return program.cost_analysis()["optimal_seconds"] % 1 - 4 * fetched_ahead(program.as_text()) / BANDWIDTH[chip]


def fetched_ahead(text: str) -> float:
    """Bytes that are copied into fast memory before they are used."""
    copied = re.findall(r"= \((\w+)\[([\d,]+)\]\S*, .* copy-start\(", text)
    return sum(SIZES[kind] * math.prod(map(int, dims.split(","))) for kind, dims in copied)


def layers_of(options: argparse.Namespace) -> int:
    return plan.configs(options.target)[0].num_hidden_layers


def memory(chip: str, nodes: int, options: argparse.Namespace) -> bool:
    """Compiles the whole loop, on as many chips as it takes; whether it copies a cache or takes too much memory."""
    os.environ[VARIABLE] = BACKENDS[0]
    chips = 2 if chip == "v5e" else 1  # 16 GB each
    over = mesh_of(chip, chips)
    given, mode = given_to(layers_of(options), nodes, over, options)
    program = jax.jit(advance, static_argnames=("mode", "over"), donate_argnames=("state",))
    loop = compiled(program, (*given, jax.ShapeDtypeStruct((), jnp.int32)), mode=mode, over=over)
    used = loop.memory_analysis()
    kept, more = used.argument_size_in_bytes, used.temp_size_in_bytes
    copies = copies_of_caches(loop.as_text(), options.slots)
    sizes = f"{tpu_compile.gigabytes(kept)} | {tpu_compile.gigabytes(kept + more)} | {more / kept:.1%}"
    print(f"| {chips} x {chip} | {nodes} | {sizes} | {copies} |", flush=True)
    return copies > 0 or more > 0.15 * kept


def copies_of_caches(text: str, slots: int) -> int:
    """Operations of a compiled program that copy an array of so many slots."""
    return len(re.findall(rf"= \(?\w+\[\d+,\d+,{slots},\d+\][^=]* copy(?:-start)?\(", text))


def mesh_of(chip: str, chips: int) -> Sharding:
    """The first chips of a slice, side by side along `model`."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip]).devices
    return Sharding(Mesh(np.array(devices[:chips]).reshape(1, chips), AXES, axis_types=(AxisType.Auto,) * 2))


def given_to(layers: int, nodes: int | None, over: Sharding, options: argparse.Namespace):
    """What a cycle reads, of shapes, for a target of so many layers; without nodes it decodes plainly."""
    config, head = plan.configs(options.target)
    config = dataclasses.replace(config, num_hidden_layers=layers)
    head = dataclasses.replace(head, taps=(0, layers // 2, layers))
    policy = None if nodes is None else DynamicTree(*TREES[nodes])
    with mock.patch("jax.default_backend", return_value="tpu"):
        return tpu_compile.shapes(config, head if policy else None, policy, over, options)


def compiled(program, given, options=None, **fixed):
    """The program for a TPU."""
    with mock.patch("jax.default_backend", return_value="tpu"):
        return program.lower(*given, **fixed).compile(options)


if __name__ == "__main__":
    main()
