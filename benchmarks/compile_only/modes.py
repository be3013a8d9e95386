"""How many kernels does a server's step launch, and at how many conditionals does it wait, by what its requests ask?

Compiles the loop for an H200 and a TPU v6e that are not there, as `benchmarks.compile_only.used_slots` does, in the
modes of `Sampling`: the program for any request, and those for what the requests of the moment ask and no more. The
shapes are those of an 8B target with its EAGLE-3 head; caches have room for log-probabilities. Exits with 1 if a
program for certain requests has a conditional.

    PYTHONPATH=build/cuda:build/libtpu python -m benchmarks.compile_only.modes
    PYTHONPATH=build/cuda python -m benchmarks.compile_only.modes --chips h200 --modes any,greedy
"""

import argparse
import os
from typing import Any

import jax

from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from benchmarks.compile_only.launches import conditionals, launches
from benchmarks.compile_only.used_slots import chip, on
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.ops import VARIABLE
from eagle_jax.workarounds import loop_options

ANY = Sampling(sampled=True, filtered=True)
NOTHING = dict(top_k=False, top_p=False, logprobs=0, structured=False, mixed=False)
MODES = {
    "any": ANY,
    "greedy": Sampling(sampled=False, filtered=False, **NOTHING),
    "greedy, log-probabilities": Sampling(sampled=False, filtered=False, **NOTHING | {"logprobs": 1}),
    "sampled": Sampling(sampled=True, filtered=False, **NOTHING),
    "sampled, top-p": Sampling(sampled=True, filtered=True, **NOTHING | {"top_p": True}),
    "sampled, top-k and top-p": Sampling(sampled=True, filtered=True, **NOTHING | {"top_k": True, "top_p": True}),
}


def main() -> int:
    own = parser(__doc__)
    own.add_argument("--chips", default="h200,v6e", help="%(default)s")
    own.add_argument("--modes", default="any,greedy,sampled", help="or all (%(default)s)")
    own.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models` (%(default)s)")
    own.add_argument("--layers", type=int, default=1, help="of the target; all layers are alike (%(default)s)")
    own.add_argument("--nodes", type=int, default=60, help="of the tree; 0 is plain (%(default)s)")
    own.add_argument("--requests", type=int, default=8, help="%(default)s")
    own.add_argument("--slots", type=int, default=2048, help="of the cache (%(default)s)")
    options = own.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the plugins compile; their devices are not there to be started
    os.environ.setdefault(VARIABLE, "xla")
    names = list(MODES) if options.modes == "all" else options.modes.split(",")
    rows = [(name, mode, *counts(name, MODES[mode], options)) for name in options.chips.split(",") for mode in names]
    title = f"{options.target}, {options.layers} layer(s), {options.requests} requests, {options.nodes} nodes"
    show(title, ("chip", "requests", "kernels a step", "conditionals a step"), rows)
    return int(any(row[1] != "any" and row[3] for row in rows))


def counts(name: str, mode: Sampling, options: argparse.Namespace) -> tuple[Any, Any]:
    """Kernels and conditionals of a step of this mode."""
    config, head = shapes.configs(options.target, options.layers)
    policy = shapes.policy_of(options.nodes)
    here = shapes.one_device()
    how = dict(requests=options.requests, slots=options.slots, quantize=None, mode=ANY, logprobs=2)
    jax.clear_caches()
    with chip(name):
        of = shapes.arguments(config, head, policy, here, **how)
        text = shapes.lowered(on(name, of), mode=mode).compile(loop_options()).as_text()
    return launches(text), conditionals(text)


if __name__ == "__main__":
    begin(main)
