"""What does a step cost on a TPU beside a plain step, and which attention is cheaper?

Predicted by the TPU compiler for chips that are not there: `pip install libtpu` beside JAX is enough. Weights are only
shapes.

Times are the compiler's `optimal_seconds`: bytes over bandwidth or operations over throughput of each operation,
whichever is longer, and for our kernel the bytes and operations that it states. They know nothing of what starting an
operation costs, nor of sorts and searches. Layers are alike: a step of one is compiled, and the others are added. What
is prefetched into fast memory the compiler counts five times, since the copy reads and writes twice: programs are
compiled to prefetch as little as possible, and four are taken off again.

    python -m benchmarks.compile_only.tpu_step --chips v5e,v5p,v6e --nodes 16,60,256,1024
    python -m benchmarks.compile_only.tpu_step --chips v5e,v5p,v6e,7x --nodes 60 --method dflash
    python -m benchmarks.compile_only.tpu_step --requests 64 --nodes 4,6,8,16 --share 4 --attention tree_attention:xla

With `--share` each tree is compiled twice: read whole, and with so many nodes for each request on average, the best of
all trees in one row (`eagle_jax.drafters.shared`).
"""

import argparse
import itertools
import math
import os
import re
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from benchmarks.compile_only.shapes import PARALLEL, TREES
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import GREEDY
from eagle_jax.drafters.shared import Shared
from eagle_jax.loop.decode import step
from eagle_jax.loop.flat_nodes import FlatNodes
from eagle_jax.methods.default_trees import shrink_to
from eagle_jax.ops import VARIABLE
from eagle_jax.sharding import Sharding, sharded

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
# Bytes a second, as the compiler has it; of a 7x those of one of a chip's two cores, each a device of its own.
BANDWIDTH = {"v5e": 819e9, "v5p": 2765e9, "v6e": 1640e9, "7x": 3686e9}
KERNEL, XLA = "tree_attention:tpu", "tree_attention:xla"
NO_PREFETCH = {"xla_msa_max_outstanding_prefetches": 0}  # all but one matrix stay where they are until they are used
SIZES = {"bf16": 2, "f32": 4, "s32": 4, "u32": 4, "s8": 1, "pred": 1}


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models` (%(default)s)")
    own.add_argument("--chips", default="v6e", help=f"of {', '.join(TOPOLOGIES)}")
    own.add_argument("--nodes", type=numbers, default=(16, 60), help="of the trees (16,60)")
    own.add_argument("--method", choices=PARALLEL, help="of a head that drafts in one pass, instead of the pair's")
    own.add_argument("--block", type=int, default=8, help="slots of its blocks (%(default)s)")
    own.add_argument("--attention", default=f"{KERNEL},{XLA}", help="of the backends of eagle_jax.ops")
    own.add_argument("--slots", type=int, default=2048, help="of the cache, all of them used (%(default)s)")
    own.add_argument("--requests", type=int, default=1, help="%(default)s")
    own.add_argument("--share", type=int, help="nodes for each request that all of them share")
    own.add_argument("--quantize", help="as for `load`: int8, int4 or int4-128, or draft:int8 and so on")
    options = own.parse_args()
    chips, quantize = options.chips.split(","), f", {options.quantize}" if options.quantize else ""
    head = "" if options.method is None else f" with {options.method}, blocks of {options.block}"
    title = f"{options.target}{head}, {options.requests} request(s), {options.slots} slots, bfloat16{quantize}"
    times = []
    for chip in chips:
        for backend in options.attention.split(","):
            os.environ[VARIABLE] = backend
            cases = [(None, None), *itertools.product(options.nodes, {None, options.share})]
            plain, *trees = (seconds(chip, count, options, share) for count, share in cases)
            cells = (f"{1e3 * tree:.2f} ms ({tree / plain:.2f}x)" for tree in trees)
            times.append((chip, backend, f"{1e3 * plain:.2f} ms", *cells))
    names = (f"{count} nodes{'' if share is None else f', {share} read'}" for count, share in cases[1:])
    columns = ("chip", "attention", "plain step", *(f"step of {name}" for name in names))
    show(title, columns, times)


def seconds(chip: str, nodes: int | None, options: argparse.Namespace, share: int | None = None) -> float:
    """Of a whole step, draft included; of a plain step without nodes.

    Args:
        share: nodes that the target reads, for each request on average; None is every tree whole.
    """
    sharding = shapes.tpu_mesh(TOPOLOGIES[chip], (1, 1))
    target, drafter, *others = arguments(1, nodes, sharding, options)
    of = target, drafter if share is None else Shared(drafter, share * options.requests), *others

    def one(target: Any, drafter: Any, request: Any, state: Any, *, sharding: Sharding) -> Any:
        return step(target, drafter, request, state, GREEDY)

    layers = shapes.configs(options.target, None)[0].num_hidden_layers
    more = layer(chip, nodes or 1, options, sharding, share)
    return predicted(chip, one, of, sharding, donate=(3,)) + (layers - 1) * more


def layer(chip: str, nodes: int, options: argparse.Namespace, sharding: Sharding, share: int | None) -> float:
    """Seconds of one more layer of the target over so many rows: two against one, without drafts and logits."""

    def forward(target: Any, tokens: Any, visible: Any, state: Any, *, sharding: Sharding) -> Any:
        positions = state.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        if share is None:
            output = target.forward(tokens, positions, visible, state.cache)
        else:
            rows = FlatNodes.of(tokens > 0, share * len(tokens))
            output = target.forward(*rows.inputs(tokens, positions, visible), state.cache, flat=rows.flat_rows)
        return output.hidden, output.kv

    tokens = jax.ShapeDtypeStruct((options.requests, nodes), jnp.int32)
    visible = jax.ShapeDtypeStruct((options.requests, nodes, nodes), jnp.bool_)
    rows = shapes.placed((tokens, visible), sharding, sharding.state)
    times = []
    for layers in (1, 2):
        target, _, _, state = arguments(layers, None, sharding, options)
        times.append(predicted(chip, forward, (target, *rows, state), sharding))
    return times[1] - times[0]


def predicted(chip: str, function: Any, of: tuple[Any, ...], sharding: Sharding, donate: tuple[int, ...] = ()) -> float:
    """Seconds of a program; an operation whose cost is not known takes a second off."""
    with shapes.platform("tpu"):
        program = jax.jit(sharded(function), static_argnames=("sharding",), donate_argnums=donate)
        compiled = program.lower(*of, sharding=sharding).compile(NO_PREFETCH)
    prefetched = re.findall(r"= \((\w+)\[([\d,]+)\]\S*, .* copy-start\(", compiled.as_text())
    copied = sum(SIZES[kind] * math.prod(numbers(dims)) for kind, dims in prefetched)
    return compiled.cost_analysis()["optimal_seconds"] % 1 - 4 * copied / BANDWIDTH[chip]


def tree(nodes: int) -> DynamicTree:
    """The tree of so many nodes that is compiled; a small one as it is by default where there are many requests."""
    if nodes in TREES:
        return DynamicTree(*TREES[nodes])
    small = shrink_to(DynamicTree(*TREES[60]), nodes)
    assert isinstance(small, DynamicTree)
    return small


def arguments(layers: int | None, nodes: int | None, sharding: Sharding, options: argparse.Namespace) -> Any:
    """What a step reads, for a target of so many layers; without nodes it decodes plainly."""
    config, head = shapes.configs(options.target, layers, options.method, options.block)
    policy = None if nodes is None else tree(nodes)
    how = {name: getattr(options, name) for name in ("requests", "slots", "quantize")}
    with shapes.platform("tpu"):
        return shapes.arguments(config, head, policy, sharding, **how)


if __name__ == "__main__":
    begin(main)
