"""Kernels of a step, counted in a program's text."""

import jax
import jax.numpy as jnp

from benchmarks.compile_only.launches import conditionals, launches
from benchmarks.compile_only.shapes import copies_of_caches

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


def test_kernels_of_a_step_are_those_of_the_loops_body():
    assert launches(PROGRAM) == 2 + 7 + 1


def test_conditionals_of_a_step_with_those_of_inner_loops_and_branches():
    def inner(x: jax.Array) -> jax.Array:
        other = jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)
        return jax.lax.cond(x[1] > 0, lambda x: jax.lax.cond(x[2] > 0, jnp.tan, jnp.exp, x), jnp.tanh, other)

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 100, inner, jax.lax.cond(x[0] > 1, jnp.sin, jnp.cos, x))

    found = jax.jit(loop).lower(jnp.zeros(4)).compile().as_text()
    assert conditionals(found) == 3, "that before the loop is none of a step"
    assert conditionals(PROGRAM) == 0


def test_kernels_of_what_jax_compiles():
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: jnp.tanh(x) @ x + 1, x)

    x = jnp.zeros((4, 4))
    found = launches(jax.jit(loop).lower(x).compile().as_text())
    assert found is not None and 1 <= found < 10
    assert launches(jax.jit(jnp.tanh).lower(x).compile().as_text()) is None


def test_a_copy_into_a_tpus_vmem_is_no_copy_of_a_cache():
    cache = "bf16[8,2,4096,128]{3,2,1,0:T(8,128)(2,1)"
    in_memory, ahead = f"%a = {cache}}} copy(%b)", f"%a = ({cache}}}, {cache}S(1)}}, u32[]) copy-start(%b)"
    assert [copies_of_caches(program, 4096) for program in (in_memory, ahead)] == [1, 0]
