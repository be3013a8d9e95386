"""What does a plain step cost by XLA alone where most of the cache is empty: all slots read, blocks of it, or a prefix?

    EAGLE_JAX_OPS=xla python -m benchmarks.decode.used_slots

Times steps of 16 requests with 4,096 slots each, of which some 300 are used, and of a random target of SmolLM2-135M's
sizes, in float32. `all` is attention over all slots at once, `blocks` what `xla` does on a CPU, and `prefix` is
`EAGLE_JAX_OPS=xla,tree_attention:prefix`. They take turns on one state; printed is the median of the turns.
"""

import argparse
import os
import statistics
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from eagle_jax.decoding.sampling import Sampling, Settings, request_keys
from eagle_jax.drafters.base import Plain
from eagle_jax.inspection.plan import configs
from eagle_jax.loop.decode import advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import BatchParams
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.ops import VARIABLE, attention_reference
from eagle_jax.workarounds import loop_options

GREEDY = Sampling(sampled=False, filtered=False, logprobs=0, mixed=False)
WAYS = {"all": "xla", "blocks": "xla", "prefix": "xla,tree_attention:prefix"}


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--target", default="smollm2-135m-instruct", help="whose sizes are taken (%(default)s)")
    own.add_argument("--requests", type=int, default=16, help="%(default)s")
    own.add_argument("--slots", type=int, default=4096, help="of the caches (%(default)s)")
    own.add_argument("--used", type=int, default=300, help="of them, in the middle of the run (%(default)s)")
    own.add_argument("--turns", type=int, default=8, help="%(default)s")
    own.add_argument("--steps", type=int, default=4, help="of a turn (%(default)s)")
    options = own.parse_args()
    config, _ = configs(options.target)
    lm = LM.init(config, jax.random.key(0))
    lm = LM(params=layout.for_decoding(lm.params, config.head_dim), config=config)
    params, state = started(lm, options)
    steps = {way: compiled(way, lm, params, state, options) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(options.turns + 1):
        for way, run in steps.items():
            until, start = jnp.int32(int(state.steps) + options.steps), time.perf_counter()
            state = jax.block_until_ready(run(lm, Plain(), params, state, until))
            times[way] += [1e3 * (time.perf_counter() - start) / options.steps] if turn else []  # the first warms up
    least = {way: statistics.median(found) for way, found in times.items()}
    used = f"{int(state.length.max())} of {options.slots} slots used at the end"
    rows = [(way, f"{least[way]:.1f}", f"{least['all'] / least[way]:.2f}x") for way in WAYS]
    show(f"{options.target}, {options.requests} requests, {used}", ("attention", "ms a step", "faster than all"), rows)


def started(lm: LM, options: argparse.Namespace) -> tuple[BatchParams, Any]:
    """Requests whose prompts are read, and that go on for longer than the turns take."""
    rows, steps = options.requests, (options.turns + 1) * options.steps * len(WAYS)
    prompt = options.used - steps // 2
    if prompt < 1 or prompt + steps >= options.slots:
        raise SystemExit(f"{steps} steps around {options.used} used slots do not fit; give fewer --turns or --steps")
    floats, whole = np.zeros(rows, np.float32), np.full(rows, prompt, np.int32)
    settings = Settings(floats, np.zeros(rows, np.int32), floats + 1, floats, request_keys([0] * rows, [0] * rows))
    params = BatchParams(settings, whole, np.full(rows, options.slots, np.int32), np.full((rows, 1), -1, np.int32))
    tokens = np.random.default_rng(0).integers(0, lm.config.vocab_size, (rows, options.slots + 1)).astype(np.int32)
    fixed = dict(mode=GREEDY, slots=options.slots, chunk=64, logprobs=0)
    return params, compiled_prefill()(lm, Plain(), params, tokens, **fixed)


def compiled(way: str, lm: LM, params: BatchParams, state: Any, options: argparse.Namespace) -> Any:
    """The loop with this attention."""
    jax.clear_caches()  # what was traced with another one
    block = options.slots if way == "all" else attention_reference.BLOCK
    with mock.patch.dict(os.environ, {VARIABLE: WAYS[way]}), mock.patch.object(attention_reference, "BLOCK", block):
        program = jax.jit(advance, static_argnames="mode", donate_argnames="state", compiler_options=loop_options())
        return program.lower(lm, Plain(), params, state, jnp.int32(0), mode=GREEDY).compile()


if __name__ == "__main__":
    begin(main)
