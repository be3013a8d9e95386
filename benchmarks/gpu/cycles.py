"""Timing a few cycles of the decoding loop, with drafters that take turns."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax import Model
from eagle_jax.api.tuning import Start
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Drafter
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.models import layout
from eagle_jax.models.quant import quantise_params, scheme_of
from gpu.scale import Scale

ROUNDED = "head in int8"


def seconds_a_cycle(start: Start, drafters: Mapping[Any, Drafter], scale: Scale) -> dict[Any, float]:
    """The least of several timings of each; compiling is not in them."""
    best: dict[Any, float] = {}
    for _ in range(scale.repeats + 1):  # the first is a warm-up, and never the least
        for key, drafter in drafters.items():
            ran = start.run(drafter, scale.cycles)
            best[key] = min(best.get(key, float("inf")), ran.seconds / ran.cycles)
    return best


def with_rounded_head(model: Model) -> Model:
    """The same target, whose head is rounded to 8 bits: the same texts for fewer bytes of drafting."""
    params = quantise_params(layout.as_stored(model.head.params), scheme_of("int8"))
    params = layout.for_decoding(params, model.head.config.layers.head_dim)
    return dataclasses.replace(model, head=dataclasses.replace(model.head, params=params))


def published(model: Any, scale: Scale) -> Eagle:
    """EAGLE-3 with the published tree."""
    return Eagle(head=model.head, policy=DynamicTree(*scale.tree))
