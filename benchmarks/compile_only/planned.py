"""Does `eagle-jax plan` count the memory that the compiler assigns, while prompts are read and in the steps?

Compiles the prefill of all prompts and the loop, greedy, for chips that are not there, as
`benchmarks.compile_only.used_slots` does: an 8B target of a few layers with its EAGLE-3 head, in several shapes. Prints
what the plan counts and what the compiler assigns, weights and caches among it, and exits with 1 where they are
further apart than a tenth.

    PYTHONPATH=build/cuda:build/libtpu python -m benchmarks.compile_only.planned
    PYTHONPATH=build/libtpu python -m benchmarks.compile_only.planned --chips v6e --shapes 8x4096x60
"""

import argparse
import os
from typing import Any

import jax

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from benchmarks.compile_only.used_slots import chip, compiled_loop, compiled_prefill, whole
from eagle_jax.inspection import plan
from eagle_jax.ops import VARIABLE

FOUR = "1x2048x60,8x4096x60,32x4096x0,16x8192x16"
MOST = 0.1  # of the plan, by which the two may differ


def main() -> int:
    own = parser(__doc__)
    own.add_argument("--chips", default="h200,v6e", help="%(default)s")
    own.add_argument("--shapes", default=FOUR, help="requests x slots x nodes of the tree, 0 is plain (%(default)s)")
    own.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models` (%(default)s)")
    own.add_argument("--layers", type=int, default=2, help="of the target; all layers are alike (%(default)s)")
    options = own.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the plugins compile; their devices are not there to be started
    os.environ.setdefault(VARIABLE, "xla")
    rows = [
        (name, *asked, what, *(f"{size / 1e9:.3f}" for size in pair), f"{pair[0] / pair[1] - 1:+.1%}")
        for name in options.chips.split(",")
        for asked in (numbers(each.replace("x", ",")) for each in options.shapes.split(","))
        for what, *pair in sizes(name, *asked, options)
    ]
    columns = ("chip", "requests", "slots", "nodes", "program", "planned, GB", "compiled, GB", "planned by compiled")
    show(f"{options.target}, {options.layers} layers", columns, rows)
    return int(any(abs(float(row[-1].strip("%")) / 100) > MOST for row in rows))


def sizes(name: str, requests: int, slots: int, nodes: int, options: argparse.Namespace) -> list[tuple[Any, ...]]:
    """Bytes by plan and compiler of both programs."""
    config, head = shapes.configs(options.target, options.layers)
    policy = shapes.policy_of(nodes)
    here = shapes.one_device()
    with chip(name):
        of = shapes.arguments(config, head, policy, here, requests=requests, slots=slots, quantize=None)
    read, loop = compiled_prefill(name, of, slots), compiled_loop(name, of)
    drafting = head if nodes else None
    planned = plan.plan_of_configs(config, drafting, here.sizes, requests, slots, max(nodes, 1), "bfloat16")
    kept = planned.target + planned.head + planned.cache
    return [("prefill", kept + planned.prefill, whole(read)), ("step", kept + planned.step, whole(loop))]


if __name__ == "__main__":
    begin(main)
