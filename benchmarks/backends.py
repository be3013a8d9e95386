"""What do the CPU backend and a second CPU thread save, for models of several sizes?

Decodes random models, plainly and checking four and sixteen nodes a pass (prompt lookup), each size in processes of its
own: with the CPU backend and with XLA, with one thread and with as many as there are cores.
Prints the least time of a pass.

    python benchmarks/backends.py
"""

import argparse
import json
import os
import subprocess
import sys

from common import begin, table
from random_model import random_model

import eagle_jax
from eagle_jax.drafters.prompt_lookup import PromptLookup

SIZES = {"256 x 8": (256, 8), "512 x 8": (512, 8), "1024 x 8": (1024, 8), "1024 x 24": (1024, 24)}
PROMPT, TOKENS, RUNS = list(range(40)), 48, 5
DRAFTED = {"one": 0, "four": 3, "sixteen": 15}


def measure(width: int, layers: int, dtype: str) -> dict[str, float]:
    """MB of weights, and milliseconds of a pass in this process, by the nodes that it checks."""
    model, size = random_model(4096, width, layers, dtype, tied=True)
    found = {"MB": size / 1e6}
    for name, copied in DRAFTED.items():
        drafter = PromptLookup(copied=copied) if copied else "none"
        runs = [eagle_jax.generate(model, PROMPT, max_new_tokens=TOKENS, drafter=drafter) for _ in range(RUNS)]
        found[name] = min(1e3 * run.stats.decode_seconds / run.stats.cycles for run in runs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)  # what a process of its own measures
    options = parser.parse_args()
    if options.size is not None:
        print(json.dumps(measure(*SIZES[options.size], options.dtype)))
        return
    cores, lines = str(os.cpu_count()), []
    ways = [(backend, threads) for backend in ("cpu", "xla") for threads in ("1", cores)]
    for size in SIZES:
        found = {}
        for backend, threads in ways:
            command = [sys.executable, __file__, "--size", size, "--dtype", options.dtype]
            environment = os.environ | {"PJRT_NPROC": threads, "EAGLE_JAX_OPS": backend}
            ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            found[backend, threads] = json.loads(ran.stdout)
        for nodes in DRAFTED:
            times = [f"{found[way][nodes]:.2f} ms" for way in ways]
            lines.append([f"{found[ways[0]]['MB']:.0f} MB", nodes, *times])
    names = {"cpu": "ours", "xla": "XLA"}
    header = [f"{names[backend]}, {threads} {'thread' if threads == '1' else 'threads'}" for backend, threads in ways]
    print(table([f"{options.dtype} weights", "nodes", *header], lines))


if __name__ == "__main__":
    begin(main)
