"""Does the decoding loop fit a TPU slice, and what is communicated between its chips?

Compiles the whole sharded loop (draft, target pass, draw, commit, in `lax.while_loop`) with the TPU compiler for a
slice that is not there: `pip install libtpu` beside JAX is enough. Weights are only shapes. Prints the memory that the
compiler assigns on each chip beside `eagle-jax plan`'s, and the collectives of one step. Exits with 1 if the plan is
off by more than a tenth, if a cache is copied, or if a cache or a whole vocabulary is communicated.

    python -m benchmarks.compile_only.tpu_slice --target llama-3.1-8b-instruct --topology v5e:2x2 --mesh model:4
    EAGLE_JAX_OPS=tree_attention:tpu python -m benchmarks.compile_only.tpu_slice --topology v6e:2x2 --mesh model:1
"""

import collections
import re

import jax.numpy as jnp

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from benchmarks.compile_only.shapes import gigabytes
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.inspection import plan
from eagle_jax.models.quant import schemes_of
from eagle_jax.sharding import AXES, parse

COLLECTIVE = r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


def main() -> int:
    own = parser(__doc__)
    own.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models` (%(default)s)")
    own.add_argument("--topology", default="v5e:2x2", help="%(default)s")
    own.add_argument("--mesh", default="model:4", help="of the slice's first chips (%(default)s)")
    own.add_argument("--quantize", help="int8, int4 or int4-128, draft:int8 and so on, as for `load`")
    own.add_argument("--layers", type=int, help="fewer than the target has, for a quick look")
    own.add_argument("--requests", type=int, default=8, help="for each group of chips along data (%(default)s)")
    own.add_argument("--slots", type=int, default=4096, help="%(default)s")
    own.add_argument("--tree", default="60,7,10", help='nodes,depth,top-k, or "none" (%(default)s)')
    own.add_argument("--temperature", type=float, default=0.0, help="%(default)s")
    options = own.parse_args()
    config, head = shapes.configs(options.target, options.layers)
    sizes = parse(options.mesh)
    policy = None if options.tree == "none" else DynamicTree(*numbers(options.tree))
    head = head if policy else None
    sharding = shapes.tpu_mesh(options.topology, [sizes[axis] for axis in AXES])
    how = {name: getattr(options, name) for name in ("requests", "slots", "quantize")}
    mode = Sampling(sampled=options.temperature > 0, filtered=False, mixed=False)

    with shapes.platform("tpu"):
        arguments = shapes.arguments(config, head, policy, sharding, mode=mode, **how)
        compiled = shapes.lowered(arguments, mode=mode, sharding=sharding).compile()
    memory = compiled.memory_analysis()
    kept, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    asked = options.requests, options.slots, policy.nodes if policy else 1, jnp.bfloat16
    planned = plan.plan_of_configs(config, head, sizes, *asked, *schemes_of(options.quantize))
    exact = planned.total - planned.buffers
    step = exact + planned.step
    rows = [
        ("weights and caches", gigabytes(kept), gigabytes(exact)),
        ("everything", gigabytes(kept + temporary), gigabytes(step)),
        ("caches, updated in place", gigabytes(memory.alias_size_in_bytes), gigabytes(planned.cache)),
    ]
    show(f"{options.target} on {options.topology}, {options.mesh}", ("per chip", "compiled", "planned"), rows)

    text = compiled.as_text()
    copies, found = shapes.copies_of_caches(text, options.slots), re.findall(COLLECTIVE, text)
    collectives = collections.Counter((kind, re.sub(r"\{[^}]*\}|/\*.*?\*/", "", shape)) for shape, kind in found)
    if collectives:
        counted = [(count, kind, shape) for (kind, shape), count in sorted(collectives.items())]
        show("Collectives of a step", ("count", "kind", "shape"), counted)
    dims = [numbers(part) for _, shape in collectives for part in re.findall(r"\[([\d,]+)\]", shape)]
    stray = [shape for shape in dims if (len(shape) == 4 and shape[2] == options.slots) or config.vocab_size in shape]
    off = abs(kept + temporary - step) / step
    print(f"\noff the plan by {off:.1%}; on top of weights and caches {temporary / kept:.1%}")
    print(f"copies of a cache: {copies}; caches or whole vocabularies that are communicated: {stray or 'none'}")
    return int(off > 0.1 or bool(stray) or copies > 0)


if __name__ == "__main__":
    begin(main)
