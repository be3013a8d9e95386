"""What may attention touch where 512 of 4,096 slots are used, and what is the largest array of a pass?

Compiles for an H200 and a TPU v6e that are not there (`make build/cuda build/libtpu`, or the packages that those
targets install), in the shapes of an 8B target. Weights and caches are only shapes.

`attention` compiles the attention of one layer in a loop, as decoding has it; bytes are those that its operations read
and write, in the branch that is taken, next to the bytes of the keys and values that are used.
`memory` compiles the step of the loop and the prefill of prompts in chunks of 256 tokens, and prints what they keep
besides weights and caches, the largest array among it, and conditionals and kernels of a step.

    python -m benchmarks.compile_only.used_slots attention
    python -m benchmarks.compile_only.used_slots memory --requests 1,32 --nodes 0,60
"""

import argparse
import contextlib
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import gpu_loop, shapes
from benchmarks.compile_only.launches import conditionals, launches
from benchmarks.compile_only.touched import largest, touched
from eagle_jax.decoding.sampling import GREEDY
from eagle_jax.inspection import plan
from eagle_jax.loop.prefill import prefill
from eagle_jax.ops import VARIABLE, tree_attention
from eagle_jax.ops.attention_reference import prefixes
from eagle_jax.workarounds import loop_options

HEADS, KV_HEADS, SIZE = 32, 8, 128  # of Llama 3.1 8B
CHUNK = 256


@contextlib.contextmanager
def chip(name: str) -> Any:
    """While tracing and compiling: the device is this one."""
    with gpu_loop.as_if_there(name) if name in gpu_loop.GPUS else shapes.platform("tpu"):
        yield


def on(name: str, tree: Any) -> Any:
    """The same shapes on this chip."""
    if name in gpu_loop.GPUS:
        return gpu_loop.on_gpu(tree, name)
    one = SingleDeviceSharding(shapes.tpu_mesh(f"{name}:2x2", (1, 1)).mesh.devices.item())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), tree)


def compiled(name: str, program: Callable[..., Any], of: tuple[Any, ...], **how: Any) -> jax.stages.Compiled:
    jax.clear_caches()
    with chip(name):
        return jax.jit(program, **how).lower(*on(name, of)).compile(loop_options())


def compiled_prefill(name: str, of: tuple[Any, ...], slots: int) -> jax.stages.Compiled:
    """The prefill of all prompts, greedy, in chunks; `of` are the loop's arguments."""
    fixed = dict(mode=GREEDY, slots=slots, chunk=CHUNK, logprobs=0)
    return compiled(name, lambda *given: prefill(*given, **fixed), (*of[:3], of[3].tokens))


def compiled_loop(name: str, of: tuple[Any, ...]) -> jax.stages.Compiled:
    """The decoding loop, greedy."""
    jax.clear_caches()
    with chip(name):
        return shapes.lowered(on(name, of), mode=GREEDY).compile(loop_options())


def attention(options: argparse.Namespace) -> None:
    rows = []
    for name in options.chips.split(","):
        for requests in options.requests:
            for nodes in options.nodes:
                counts = [bytes_of(name, way, requests, max(nodes, 1), options) for way in options.ways.split(",")]
                used = 4 * requests * KV_HEADS * options.used * SIZE
                cells = (f"{count / 1e6:.1f}" for count in counts)
                rows.append(
                    (name, requests, max(nodes, 1), f"{used / 1e6:.1f}", *cells, f"{counts[1] / counts[0]:.3f}")
                )
    columns = ("chip", "requests", "nodes", "keys and values used", *options.ways.split(","), "second by first")
    show(f"Attention of a layer, {options.used} of {options.slots} slots used, MB", columns, rows)


def bytes_of(name: str, way: str, requests: int, nodes: int, options: argparse.Namespace) -> int:
    """Bytes that the program reads and writes."""
    os.environ[VARIABLE] = f"tree_attention:{way}"

    def rows(heads: int, count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((requests, heads, count, SIZE), jnp.bfloat16)

    def program(q: Any, own: Any, visible: Any, prefix: Any, length: Any) -> Any:
        return jax.lax.fori_loop(0, length[0], lambda _, q: tree_attention(q, own, visible, prefix, length), q)

    visible = jax.ShapeDtypeStruct((requests, nodes, nodes), jnp.bool_)
    own, prefix = ((rows(KV_HEADS, count), rows(KV_HEADS, count)) for count in (nodes, options.slots))
    given = rows(HEADS, nodes), own, visible, prefix, jax.ShapeDtypeStruct((requests,), jnp.int32)
    branch = next(at for at, size in enumerate(prefixes(options.slots)) if size >= options.used)
    return touched(compiled(name, program, given).as_text(), branch)


def memory(options: argparse.Namespace) -> None:
    rows = []
    for name in options.chips.split(","):
        for way in options.ways.split(","):
            os.environ[VARIABLE] = f"tree_attention:{way}"
            for requests in options.requests:
                for nodes in options.nodes:
                    rows.append((name, way, requests, nodes, *facts(name, requests, nodes, options)))
    columns = ("chip", "attention", "requests", "nodes", "prefill on top, MB", "largest in it", "step on top, MB")
    more = ("largest in it", "conditionals", "kernels", "copies of caches", "planned by needed")
    show(f"{options.target}, {options.layers} layers, {options.slots} slots", (*columns, *more), rows)


def facts(name: str, requests: int, nodes: int, options: argparse.Namespace) -> tuple[Any, ...]:
    """What a prefill and a step keep."""
    config, head = shapes.configs(options.target, options.layers)
    policy = shapes.policy_of(nodes)
    here = shapes.one_device()
    with chip(name):
        of = shapes.arguments(
            config, head, policy, here, requests=requests, slots=options.slots, quantize=options.quantize
        )
    read, loop = compiled_prefill(name, of, options.slots), compiled_loop(name, of)
    text = loop.as_text()
    found = [f"{program.memory_analysis().temp_size_in_bytes / 1e6:.0f}" for program in (read, loop)]
    sizes = [largest(program.as_text(), options.slots) for program in (read, loop)]
    most = [f"{size / 1e6:.0f} MB {shape}" for size, shape in sizes]
    counts = conditionals(text), launches(text), shapes.copies_of_caches(text, options.slots)
    planned = plan.plan_of_configs(
        config, head if nodes else None, here.sizes, requests, options.slots, max(nodes, 1), "bfloat16"
    )
    needed = max(whole(program) for program in (read, loop))
    return found[0], most[0], found[1], most[1], *counts, f"{planned.total / needed:.2f}"


def whole(program: jax.stages.Compiled) -> int:
    """Bytes of all that a program is given, makes and keeps meanwhile."""
    memory = program.memory_analysis()
    made = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + made + memory.temp_size_in_bytes


def main() -> None:
    own = parser(__doc__)
    questions = {"attention": attention, "memory": memory}
    own.add_argument("question", choices=questions)
    own.add_argument("--chips", default="h200,v6e", help="%(default)s")
    own.add_argument("--ways", default="xla,prefix", help="of attention (%(default)s)")
    own.add_argument("--requests", type=numbers, default=(1, 32), help="1,32")
    own.add_argument("--nodes", type=numbers, default=(0, 60), help="of the tree; 0 is plain (0,60)")
    own.add_argument("--slots", type=int, default=4096, help="of the cache (%(default)s)")
    own.add_argument("--used", type=int, default=512, help="of them (%(default)s)")
    own.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models` (%(default)s)")
    own.add_argument("--layers", type=int, default=2, help="of the target; all layers are alike (%(default)s)")
    own.add_argument("--quantize", help="as for `load`")
    options = own.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the plugins compile; their devices are not there to be started
    questions[options.question](options)


if __name__ == "__main__":
    begin(main)
