"""The attention kernel for GPUs against plain XLA: which is faster alone, and do whole answers stay the same?"""

import dataclasses
import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from synthetic import Shape, Synthetic, make
from turns import ours

from eagle_jax.decoding.decode import compiled_advance, compiled_prefill
from eagle_jax.kernels import VARIABLE, Case
from eagle_jax.kernels.choose import attend
from gpu.record import Record
from gpu.scale import Scale

REFERENCE, KERNEL = "xla", "pallas_gpu"
LAYERS = 8  # of the target that answers: enough to hear a kernel, few enough to compile quickly
CALLS = 64  # of attention in one timing, each on what the one before made


def run(scale: Scale, record: Record) -> None:
    kernel = REFERENCE if scale.tiny else KERNEL  # a CPU has no other
    for requests, slots, used in scale.attention:
        for nodes in (1, scale.tree[0]):
            case = made(scale, requests, slots, used, nodes)
            times = {name: micros(case, name) for name in (REFERENCE, kernel)}
            record(
                "attention",
                requests=requests,
                slots=slots,
                used=used,
                nodes=nodes,
                xla_us=times[REFERENCE],
                kernel_us=times[kernel],
                kernel_speedup=times[REFERENCE] / times[kernel],
            )
    answers(scale, record, kernel)


def made(scale: Scale, requests: int, slots: int, used: int, nodes: int) -> Case:
    """One layer's attention, its numbers all alike: time does not hang on them."""
    config = Shape.of(scale.shape).target
    heads, dtype = config.num_key_value_heads, jnp.dtype(scale.dtype)
    group = config.num_attention_heads // heads

    def full(*shape: int) -> jax.Array:
        return jnp.full((requests, heads, *shape, config.head_dim), 0.1, dtype)

    return Case(
        q=full(group * nodes),
        fresh=(full(nodes), full(nodes)),
        visible=jnp.broadcast_to(jnp.tril(jnp.ones((nodes, nodes), bool))[None], (requests, nodes, nodes)),
        prefix=(full(slots), full(slots)),
        length=jnp.full(requests, used, jnp.int32),
        first=None,
        softcap=None,
    )


def micros(case: Case, backend: str) -> float:
    """Microseconds of one call, the least of several timings."""

    @jax.jit
    def calls(case: Case) -> jax.Array:
        def call(_: object, q: jax.Array) -> jax.Array:
            return attend(dataclasses.replace(case, q=q), backend)

        return jax.lax.fori_loop(0, CALLS, call, case.q)

    return 1e6 * least(lambda: calls(case)) / CALLS


def answers(scale: Scale, record: Record, kernel: str) -> None:
    """Whole answers of a target with few layers through both, drafted with the published tree."""
    shape = Shape.of(scale.shape)
    fewer = min(LAYERS, shape.target.num_hidden_layers)
    taps = (1, fewer // 2, fewer - 1)
    shape = Shape(
        dataclasses.replace(shape.target, num_hidden_layers=fewer), dataclasses.replace(shape.head, taps=taps)
    )
    pair = make(shape, scale.error, dtype=scale.dtype)
    texts, seconds = {}, {}
    for backend in (REFERENCE, kernel):
        texts[backend], seconds[backend] = answered(pair, scale, backend)
    record(
        "answers",
        layers=fewer,
        tokens=scale.tokens,
        kernel_speedup=seconds[REFERENCE] / seconds[kernel],
        same_text=texts[REFERENCE] == texts[kernel],
        text_is_the_charts=texts[kernel] == pair.chart.answer(scale.asked(pair.chart, 1)[0], scale.tokens),
    )


def answered(pair: Synthetic, scale: Scale, backend: str) -> tuple[list[int], float]:
    """The text, and the seconds that the loop took; programs are made anew, as the backend is chosen then."""
    os.environ[VARIABLE] = backend
    for programs in (jax.clear_caches, compiled_advance.cache_clear, compiled_prefill.cache_clear):
        programs()
    run = ours(pair.model, scale.tokens, "eagle", scale.tree)
    found = [run(prompt) for prompt in scale.asked(pair.chart, 1) for _ in range(1 + scale.repeats // 2)]
    return found[0].token_ids, min(one.decoding for one in found)


def least(call: Callable[[], object]) -> float:
    """Seconds of a call, the least of several, compiling left out."""
    jax.block_until_ready(call())
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - begun)
    return best
