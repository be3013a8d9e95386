"""Bytes that a compiled program reads and writes."""

from benchmarks.compile_only.touched import largest, touched

PROGRAM = """HloModule jit_step, is_scheduled=true

%sliced (param_0: f32[4,64]) -> f32[4,8] {
  %param_0 = f32[4,64]{1,0} parameter(0)
  ROOT %some = f32[4,8]{1,0} slice(%param_0), slice={[0:4], [0:8]}
}

%few (p.1: (f32[4,64])) -> (f32[4,8]) {
  %p.1 = (f32[4,64]{1,0}) parameter(0)
  %given.1 = f32[4,64]{1,0} get-tuple-element(%p.1), index=0
  %read = f32[4,8]{1,0} fusion(%given.1), kind=kLoop, calls=%sliced
  ROOT %made = (f32[4,8]{1,0}) tuple(%read)
}

%all (p.2: (f32[4,64])) -> (f32[4,8]) {
  %p.2 = (f32[4,64]{1,0}) parameter(0)
  %given.2 = f32[4,64]{1,0} get-tuple-element(%p.2), index=0
  %near = f32[4,64]{1,0:T(8,128)S(1)} copy(%given.2)
  %doubled = f32[4,64]{1,0} add(%near, %near)
  %ended = f32[4,8]{1,0} fusion(%doubled), kind=kLoop, calls=%sliced
  ROOT %pair = (f32[4,8]{1,0}) tuple(%ended)
}

%body (p.3: (s32[], f32[4,64])) -> (s32[], f32[4,64]) {
  %p.3 = (s32[], f32[4,64]{1,0}) parameter(0)
  %at = s32[] get-tuple-element(%p.3), index=0
  %rows = (f32[4,64]{1,0}) get-tuple-element(%p.3), index=1
  %found = (f32[4,8]{1,0}) conditional(%at, %rows, %rows), branch_computations={%few, %all}
  ROOT %again = (s32[], f32[4,64]{1,0}) tuple(%at, %rows)
}

ENTRY %main (a: f32[4,64]) -> f32[4,64] {
  %a = f32[4,64]{1,0} parameter(0)
  ROOT %loop = (s32[], f32[4,64]{1,0}) while(%a), body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""


def test_slices_branches_and_loops():
    few = 2 * 4 * 32  # what is sliced out, read and written
    every = 2 * 4 * 256 + few  # one copy is read and one sum written: what is near is not counted
    assert touched(PROGRAM, 0) == 3 * few and touched(PROGRAM, 1) == touched(PROGRAM) == 3 * every


def test_the_largest_array():
    assert largest(PROGRAM, 0) == (1024, "f32[4,64]")
