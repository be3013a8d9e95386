"""Timing a few cycles of the decoding loop, with drafters that take turns."""

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from eagle_jax import Model
from eagle_jax.decoding.decode import compiled_advance, compiled_prefill
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Drafter
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.inspection.start import Start
from eagle_jax.models import layout
from eagle_jax.models.quant import quantise_params, scheme_of
from gpu.launches import launches
from gpu.scale import Scale

ROUNDED = "head in int8"


def programs_anew() -> None:
    """Forgets all programs: which kernel multiplies or attends is chosen when one is compiled."""
    for forget in (jax.clear_caches, compiled_advance.cache_clear, compiled_prefill.cache_clear):
        forget()


def kernels_a_cycle(start: Start, drafters: Mapping[Any, Drafter]) -> dict[Any, int | None]:
    """Compiles the loops of all these drafters, several at a time, and counts what a cycle of each launches.

    Of loops whose passes have as many rows one goes first: the others find its choice of kernels made.
    """
    first = {drafter.shape.nodes: key for key, drafter in reversed(list(drafters.items()))}.values()
    found: dict[Any, int | None] = {}
    compiled_advance()  # once, before several threads ask for it: each would make one of its own
    with ThreadPoolExecutor() as pool:
        for keys in (list(first), [key for key in drafters if key not in first]):
            counts = pool.map(lambda key: _kernels(start, drafters[key]), keys)
            found |= dict(zip(keys, counts, strict=True))
    return found


def _kernels(start: Start, drafter: Drafter) -> int | None:
    """None where they cannot be counted: a program that does not compile fails where it is timed."""
    try:
        return launches(start.program(drafter))
    except Exception as error:
        print(f"kernels are not counted: {error}", flush=True)
        return None


def seconds_a_cycle(start: Start, drafters: Mapping[Any, Drafter], scale: Scale) -> Iterator[dict[Any, float]]:
    """What a cycle of each takes, after every round of timings; compiling is not in them.

    The least of the long timings minus the least of the short ones: what a call costs, however long, is in both.
    """
    best: dict[Any, list[tuple[float, int]]] = {key: [(float("inf"), 0)] * 2 for key in drafters}
    for _ in range(scale.repeats + 1):  # the first is a warm-up, and never the least
        for key, drafter in drafters.items():
            ran = [start.run(drafter, cycles) for cycles in scale.cycles]
            best[key] = [min(old, (one.seconds, one.cycles)) for old, one in zip(best[key], ran, strict=True)]
        yield {key: (long[0] - short[0]) / (long[1] - short[1]) for key, (short, long) in best.items()}


def with_rounded_head(model: Model) -> Model:
    """The same target, whose head is rounded to 8 bits: the same texts for fewer bytes of drafting."""
    params = quantise_params(layout.as_stored(model.head.params), scheme_of("int8"))
    params = layout.for_decoding(params, model.head.config.layers.head_dim)
    return dataclasses.replace(model, head=dataclasses.replace(model.head, params=params))


def published(model: Any, scale: Scale) -> Eagle:
    """EAGLE-3 with the published tree."""
    return Eagle(head=model.head, policy=DynamicTree(*scale.tree))
