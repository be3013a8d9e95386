"""Plain decoding against bandwidth: of what the device copies in a second, how much do weights make up?"""

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

from eagle_jax.drafters.base import Plain
from eagle_jax.inspection.start import Start
from eagle_jax.ops import VARIABLE
from eagle_jax.ops.gpu import int4 as int4_gpu
from gpu.bandwidth import copy_bandwidth, streamed
from gpu.cycles import kernels_a_cycle, programs_anew, seconds_a_cycle
from gpu.record import Record
from gpu.scale import Scale


def run(scale: Scale, record: Record) -> None:
    speeds = copy_bandwidth(scale)
    for way, speed in speeds.items():
        record("copy", way=way, GB_per_s=speed / 1e9)
    with int4_by("xla"):
        for quantize in (None, "int8", "int4"):
            for row in measured(scale, quantize, max(speeds.values())):
                record("plain", **row)
    with int4_by("gpu"):
        for row in measured(scale, "int4", max(speeds.values())):
            name = "int4, kernel" if row["int4_kernel"] else "int4, kernel left out"
            record("plain", **row | {"weights": name})


@contextlib.contextmanager
def int4_by(way: str) -> Iterator[None]:
    """Programs that are compiled inside multiply int4 in this way, whatever the environment asks for."""
    with mock.patch.dict(os.environ, {VARIABLE: f"linear:{way}"}):
        programs_anew()
        try:
            yield
        finally:
            programs_anew()


def measured(scale: Scale, quantize: str | None, copied: float) -> Iterator[dict[str, object]]:
    """What is known of one pair after every round; it is gone again after the last."""
    pair = scale.pair(quantize=quantize)
    model, start = pair.model, Start(pair.model, Plain(), scale.asks(pair.model, pair.chart, 1))
    config = model.target.config
    used = scale.prompt + sum(scale.cycles) // 2
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * used
    read = streamed(model.target.params) + cache * model.target.activations.itemsize
    drafters = {"plain": Plain()}
    kernels = kernels_a_cycle(start, drafters)["plain"]
    ours = int4_gpu.IN_PROGRAMS in start.program(drafters["plain"])
    for each in seconds_a_cycle(start, drafters, scale):
        seconds = each["plain"]
        yield {
            "weights": quantize or scale.dtype,
            "GB_a_step": read / 1e9,
            "ms_a_step": 1e3 * seconds,
            "tokens_per_s": 1 / seconds,
            "GB_per_s": read / seconds / 1e9,
            "of_copy_bandwidth": read / seconds / copied,
            "kernels_a_step": kernels,
            "int4_kernel": ours,
        }
