"""Does a cycle cost what is used of the cache, or what is reserved?

Decodes from the same prompt of 80 tokens with caches of 128 to 8,192 slots, plainly and with EAGLE, and prints the time
of a cycle: the least of several runs of a few cycles each, the sizes in turn, another one first each time. The first
cycles of a run are not timed: the copy of the cache that it begins with drives the weights out of the processor's own
caches. Exits with 1 if a cycle with one size of the cache takes more
than a fifth longer than with another. What reads the cache is chosen in `ops/choose.py`.

    python benchmarks/cache_length.py
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from common import begin, table

import eagle_jax
from eagle_jax.decoding.decode import compiled_advance, compiled_prefill
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import GREEDY, Settings, request_keys
from eagle_jax.decoding.state import BatchParams
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle

PROMPT, UNTIMED, CYCLES = 80, 3, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", default="128,512,2048,8192")
    parser.add_argument("--tree", default="26,5,8", help="nodes,depth,top-k")
    parser.add_argument("--runs", type=int, default=32)
    options = parser.parse_args()
    sizes = [int(part) for part in options.slots.split(",")]
    model = eagle_jax.load()
    drafters = {
        "plain": Plain(),
        f"EAGLE, tree {options.tree}": Eagle(head=model.head, policy=DynamicTree(*map(int, options.tree.split(",")))),
    }
    best: dict[tuple[str, int], float] = {}
    states = {(name, size): prefilled(model.target, drafters[name], size) for name in drafters for size in sizes}
    turns = list(states)
    for _ in range(options.runs + 1):  # the first compiles, and is the slowest
        turns = [*turns[1:], turns[0]]
        for name, size in turns:
            seconds = timed(model.target, drafters[name], states[name, size])
            best[name, size] = min(seconds, best.get((name, size), np.inf))

    rows = []
    for name in drafters:
        first = best[name, sizes[0]]
        rows.append([name, *(f"{1e3 * best[name, size]:.2f} ms ({best[name, size] / first:.2f})" for size in sizes)])
    print(table(["cycle", *(f"{size} slots" for size in sizes)], rows))
    spans = [[best[name, size] for size in sizes] for name in drafters]
    raise SystemExit(int(any(max(span) > 1.2 * min(span) for span in spans)))


def request() -> BatchParams:
    """One greedy request that nothing stops."""
    one, zero = jnp.ones(1, jnp.int32), jnp.zeros(1)
    settings = Settings(temperature=zero, top_k=0 * one, top_p=1 + zero, min_p=zero, key=request_keys([0], [0]))
    return BatchParams(settings, PROMPT * one, 128 * one, jnp.asarray([-1], jnp.int32))


def prefilled(target, drafter, slots: int):
    """The state behind the prompt, with room for so many tokens."""
    text = np.random.default_rng(0).integers(0, target.config.vocab_size, (1, slots + 16)).astype(np.int32)
    fixed = dict(mode=GREEDY, slots=slots, chunk=64, logprobs=False)
    return compiled_prefill()(target, drafter, request(), jnp.asarray(text), **fixed)


def timed(target, drafter, state) -> float:
    """Seconds of a cycle of a few that begin here."""
    mine = jax.tree.map(jnp.copy, state)  # the loop takes over what it is given

    def until(cycle: int, state):
        return jax.block_until_ready(
            compiled_advance()(target, drafter, request(), state, jnp.asarray(cycle, jnp.int32), mode=GREEDY)
        )

    begun = until(UNTIMED, mine)
    start, before = time.perf_counter(), int(begun.steps)
    done = until(UNTIMED + CYCLES, begun)
    return (time.perf_counter() - start) / (int(done.steps) - before)


if __name__ == "__main__":
    begin(main)
