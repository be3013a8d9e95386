"""What the sections of benchmarks/gpu.sh measure with: kernels of a cycle, answers as they come in, failing kernels."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from chart import PUBLISHED
from gpu import cycles, kernels
from gpu.answers import answered, beside
from gpu.launches import launches
from gpu.scale import TINY
from turns import Request

from eagle_jax.inspection.start import Ran

PROGRAM = """HloModule jit_advance, is_scheduled=true

%fused (param_0: f32[8]) -> f32[8] {
  %param_0 = f32[8]{0} parameter(0)
  ROOT %add.1 = f32[8]{0} add(%param_0, %param_0)
}

%command_buffer (p.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  %first = f32[8]{0} fusion(%p.1), kind=kLoop, calls=%fused
  ROOT %second = (f32[8]{0}, /*index=1*/s8[64]{0}) custom-call(%first), custom_call_target="__cublas$gemm"
}

%inner_body (p.2: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.2 = (s32[], f32[8]{0}) parameter(0)
  %at = f32[8]{0} get-tuple-element(%p.2), index=1
  %one = f32[8]{0} fusion(%at), kind=kLoop, calls=%fused
  ROOT %pair = (s32[], f32[8]{0}) tuple(%one)
}

%body (p.3: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.3 = (s32[], f32[8]{0}) parameter(0)
  %call = f32[8]{0} call(%p.3), to_apply=%command_buffer
  %inner = (s32[], f32[8]{0}) while(%call), body=%inner_body, backend_config={"known_trip_count":{"n":"7"}}
  %start = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%inner)
  ROOT %done = f32[8]{0} copy-done(%start)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %outside = f32[8]{0} fusion(%a), kind=kLoop, calls=%fused
  ROOT %while.1 = (s32[], f32[8]{0}) while(%outside), condition=%c, body=%body, metadata={op_name="jit(advance)/while"}
}
"""


def test_kernels_of_a_cycle_are_those_of_the_loops_body():
    assert launches(PROGRAM) == 2 + 7 + 1


def test_kernels_of_what_jax_compiles():
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: jnp.tanh(x) @ x + 1, x)

    x = jnp.zeros((4, 4))
    found = launches(jax.jit(loop).lower(x).compile().as_text())
    assert found is not None and 1 <= found < 10
    assert launches(jax.jit(jnp.tanh).lower(x).compile().as_text()) is None and launches(None) is None


def test_what_a_call_costs_is_no_part_of_a_cycle():
    class Start:
        def run(self, drafter: float, count: int) -> Ran:
            return Ran(count, 5.0 + drafter * count + next(noise), count)

    noise = itertools.cycle([1.0, 0.5, 0.0, 0.0])
    found: Any = list(cycles.seconds_a_cycle(Start(), {"slow": 2.0, "fast": 0.25}, TINY))
    assert len(found) == TINY.repeats + 1
    assert found[-1]["fast"] == 0.25 and found[-1].keys() == {"slow", "fast"}


def test_answers_are_known_as_they_come_in():
    seconds = iter([9.0, 9.0, 9.0, 9.0, 2.0, 1.0, 2.0, 1.0])

    def method(prompt: list[int]) -> Request:
        spent = next(seconds)
        return Request([*prompt, 0], 1.0, spent, spent)

    came = list(answered({"plain": method, "quick": method}, [[1], [2]], 1))
    assert [name for name, _ in came] == ["plain", "quick"] * 4
    assert [len(one.requests) for _, one in came[:4]] == [1, 1, 2, 2]
    assert came[-2][1].speed() == 1.0 and came[-1][1].speed() == 2.0
    assert beside(came[-1][1], came[0][1]).texts == came[0][1].texts == [[1, 0]]


def test_a_kernel_that_fails_leaves_the_others_numbers(monkeypatch: pytest.MonkeyPatch):
    def micros(scale: Any, size: Any, backend: str) -> float:
        if calls.append(backend) or len(calls) > 2:
            raise ValueError("no such instruction\non this device")
        return 12.0

    calls: list[str] = []
    rows: dict[Any, dict[str, Any]] = {}
    monkeypatch.setattr(kernels, "micros", micros)
    monkeypatch.setattr(kernels, "answered", lambda pair, scale, backend: ([1, 2], 0.5))
    with pytest.raises(RuntimeError, match="2 of 6 failed, first with: ValueError: no such instruction$"):
        kernels.run(TINY, lambda table, /, **row: rows.update({(table, next(iter(row.values()))): row}))
    attention = [row for (table, _), row in rows.items() if table == "attention"]
    assert [(row["xla_us"], row["kernel_us"], row["failed"]) for row in attention] == [
        (12.0, None, "ValueError: no such instruction")
    ] * 2
    assert rows["answers", "kernel"]["of_xla"] == 1.0 and rows["answers", "kernel"]["text_is_xlas"]


def test_attention_alone_goes_through_more_than_the_device_keeps():
    case, caches = kernels.made(TINY, kernels.Size(1, 256, 100, 8))
    read = 2 * case.length.item() * case.q.shape[1] * case.q.shape[3] * case.q.dtype.itemsize
    assert read * len(caches) >= TINY.swept and TINY.error is PUBLISHED
    assert not jnp.array_equal(caches[0][0], caches[1][0])
