"""The attention kernel for GPUs against plain XLA: which is faster alone, and do whole answers stay the same?"""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from synthetic import Shape, Synthetic, make
from turns import ours

from eagle_jax.models.cache import KV
from eagle_jax.ops import VARIABLE, Case, attention_reference
from eagle_jax.ops.dispatch import dispatch
from gpu.cycles import programs_anew
from gpu.record import Record
from gpu.scale import Scale

REFERENCE, KERNEL = "tree_attention:xla", "tree_attention:gpu"
LAYERS = 8  # of the target that answers: enough to hear a kernel, few enough to compile quickly
CALLS = 256  # of attention in one timing, or some more, each on what the one before made


@dataclasses.dataclass(frozen=True)
class Size:
    """Of one call of attention."""

    requests: int
    slots: int
    used: int
    nodes: int


@dataclasses.dataclass(frozen=True)
class Tried:
    """What came of a call, or why nothing did."""

    found: Any = None
    failed: str | None = None


def run(scale: Scale, record: Record) -> None:
    """All of plain XLA's comes first: a kernel that fails may leave a device that does nothing any more.

    Raises:
        RuntimeError: something failed; its row says why, and all others are there.
    """
    backends = {"xla": REFERENCE, "kernel": REFERENCE if scale.tiny else KERNEL}  # a CPU has no other
    sizes = [Size(*cache, nodes) for cache in scale.attention for nodes in (1, scale.tree[0])]
    pair = few_layers(scale)
    times: dict[Size, dict[str, Tried]] = {size: {} for size in sizes}
    texts: dict[str, Tried] = {}
    for name, backend in backends.items():
        for size in sizes:
            times[size][name] = tried(micros, scale, size, backend)
            record("attention", **attention_row(size, **times[size]))
        texts[name] = tried(answered, pair, scale, backend)
        record("answers", backend=name, **answers_row(pair, scale, texts["xla"], texts[name]))
    failed = [one.failed for tries in (*times.values(), texts) for one in tries.values() if one.failed]
    if failed:
        raise RuntimeError(f"{len(failed)} of {2 * len(sizes) + 2} failed, first with: {failed[0]}")


def tried(call: Callable[..., Any], *given: Any) -> Tried:
    """Any failure is a result here: it must not keep the other backend's numbers from being taken."""
    try:
        return Tried(call(*given))
    except Exception as error:
        return Tried(failed=f"{type(error).__name__}: {str(error).strip()[:300]}".splitlines()[0])


def attention_row(size: Size, xla: Tried, kernel: Tried | None = None) -> dict[str, object]:
    kernel = kernel or Tried()
    return {
        "attention": f"{size.nodes} nodes, {size.requests} x {size.used} of {size.slots} slots",
        "xla_us": xla.found,
        "kernel_us": kernel.found,
        "kernel_speedup": xla.found / kernel.found if xla.found and kernel.found else None,
        "failed": xla.failed or kernel.failed,
    }


def answers_row(pair: Synthetic, scale: Scale, xla: Tried, one: Tried) -> dict[str, object]:
    row: dict[str, object] = {"layers": pair.model.target.config.num_hidden_layers, "failed": one.failed}
    if one.found is None:
        return row
    text, seconds = one.found
    row |= {"tokens_per_s": len(text) / seconds}
    if xla.found is not None:
        row |= {"of_xla": xla.found[1] / seconds, "text_is_xlas": text == xla.found[0]}
    return row | {"text_is_the_charts": text == pair.chart.answer(scale.asked(pair.chart, 1)[0], scale.tokens)}


def micros(scale: Scale, size: Size, backend: str) -> float:
    """Microseconds of one call, the least of several timings. Calls go through so many caches that none is still near
    the device's cores when its turn comes again, as in a model, whose weights are read in between.
    """
    os.environ[VARIABLE] = backend
    case, caches = made(scale, size)
    rounds = math.ceil(CALLS / len(caches))

    @jax.jit
    def call(q: jax.Array, case: Case, prefix: KV) -> jax.Array:
        return dispatch("tree_attention", attention_reference.attend, dataclasses.replace(case, q=q, prefix=prefix))

    @jax.jit
    def calls(case: Case, caches: list[KV]) -> jax.Array:
        def through_all(_: object, q: jax.Array) -> jax.Array:
            for prefix in caches:
                q = call(q, case, prefix)
            return q

        return jax.lax.fori_loop(0, rounds, through_all, case.q)

    return 1e6 * least(lambda: calls(case, caches)) / (rounds * len(caches))


def made(scale: Scale, size: Size) -> tuple[Case, list[KV]]:
    """One layer's attention of random numbers, and caches that it goes through."""
    config = Shape.of(scale.shape).target
    heads, dtype = config.num_key_value_heads, jnp.dtype(scale.dtype)
    group, nodes = config.num_attention_heads // heads, size.nodes

    def drawn(seed: int, rows: int) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), (size.requests, heads, rows, config.head_dim), dtype)

    read = 2 * size.requests * heads * size.used * config.head_dim * dtype.itemsize
    caches = [(drawn(2 * at, size.slots), drawn(2 * at + 1, size.slots)) for at in range(math.ceil(scale.swept / read))]
    case = Case(
        q=drawn(-1, group * nodes) / math.sqrt(config.head_dim),
        fresh=(drawn(-2, nodes), drawn(-3, nodes)),
        visible=jnp.broadcast_to(jnp.tril(jnp.ones((nodes, nodes), bool))[None], (size.requests, nodes, nodes)),
        prefix=caches[0],
        length=jnp.full(size.requests, size.used, jnp.int32),
        first=None,
        softcap=None,
    )
    return case, caches


def few_layers(scale: Scale) -> Synthetic:
    """A pair whose target has few layers."""
    shape = Shape.of(scale.shape)
    fewer = min(LAYERS, shape.target.num_hidden_layers)
    target = dataclasses.replace(shape.target, num_hidden_layers=fewer)
    head = dataclasses.replace(shape.head, taps=(1, fewer // 2, fewer - 1))
    return make(Shape(target, head), scale.error, dtype=scale.dtype)


def answered(pair: Synthetic, scale: Scale, backend: str) -> tuple[list[int], float]:
    """The text, drafted with the published tree, and the seconds that the loop took; programs are made anew, as the
    backend is chosen then.
    """
    os.environ[VARIABLE] = backend
    programs_anew()
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
