"""The machine code is made for this CPU, works for lesser ones, and is kept on disk without being trusted blindly."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax.ops.cpu
from eagle_jax import ops
from eagle_jax.ops.cpu import backend
from eagle_jax.ops.cpu.panels import Panels

pytestmark = pytest.mark.skipif(backend.refusal() is not None, reason="the CPU backend is not used")

ROOT = Path(__file__).parents[3]
PRODUCTS_OF_A_LESSER_CPU = """
import jax, jax.numpy as jnp, numpy as np
from eagle_jax.ops import Affine, AttentionCall, MLPWeights, Norm, mlp_block, matmul
from eagle_jax.ops import attention_reference as xla
from eagle_jax.ops.cpu import backend
from eagle_jax.ops.cpu.backend import pack
assert backend.refusal() is None
for dtype in (jnp.float32, jnp.bfloat16):
    for rows in range(1, 12):
        x, w = (jax.random.normal(jax.random.key(i), (n, 96), dtype) for i, n in ((0, rows), (1, 144)))
        expected = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
        np.testing.assert_allclose(jax.jit(matmul)(x, pack(w)), expected, atol=1e-4)
from eagle_jax.ops.quantized import QuantType, dense, quantize
for bits in (8, 4):
    for rows in range(1, 9):
        x, w = (jax.random.normal(jax.random.key(i), (n, 96)) for i, n in ((0, rows), (1, 144)))
        w = quantize(w, QuantType(bits, 32), jnp.float32)
        blocks, highest = np.asarray(x).reshape(rows, 3, 32), np.float32({8: 127, 16: 32639}[backend.row_bits(bits)])
        largest = np.abs(blocks).max(axis=2, keepdims=True)
        rounded = np.rint(blocks * (highest / largest)).astype(np.float64) * (largest / highest)
        expected = rounded.reshape(rows, 96) @ np.asarray(dense(w), np.float64).T
        np.testing.assert_allclose(jax.jit(matmul)(x, pack(w)), expected, atol=1e-4)
from tests.ops.quantized_weights import PUBLISHED, random_weight
for kind in PUBLISHED:
    x, w = jax.random.normal(jax.random.key(0), (7, 256)), random_weight(kind, 80, 256)
    expected = np.asarray(x, np.float64) @ np.asarray(dense(w), np.float64).T
    close = {16: 1e-4, 8: 2e-2}[16 if w.levels == "e4m3" else backend.row_bits(w.bits)]
    np.testing.assert_allclose(jax.jit(matmul)(x, pack(w)), expected, atol=close * np.abs(expected).max())
for size in (16, 32, 48, 64):
    nodes = enumerate((14, 7, 7, 90, 90))
    q, k, v, old, older = (jax.random.normal(jax.random.key(i), (2, 2, n, size)) for i, n in nodes)
    see = jnp.broadcast_to(jnp.tril(jnp.ones((7, 7), bool)), (2, 7, 7))
    length = jnp.array([70, 3], jnp.int32)
    for first in (None, jnp.broadcast_to(length[:, None] - 9, (2, 7))):
        prefix = old, older
        case = AttentionCall(q, (k, v), see, prefix=prefix, length=length, first=first, softcap=None)
        np.testing.assert_allclose(jax.jit(backend.tree_attention)(case), jax.jit(xla.attend)(case), atol=1e-5)
from eagle_jax.ops.mlp_block import reference
for dtype, close in ((jnp.float32, 1e-4), (jnp.bfloat16, 5e-2)):
    sizes = ((7, 96), (2, 64, 96), (96, 64))
    x, wide, narrow = (jax.random.normal(jax.random.key(i), size, dtype) for i, size in enumerate(sizes))
    x, norm = x.astype(jnp.float32)[None], Norm(jnp.ones(96), 1e-5)
    weights = MLPWeights(norm, *(Affine(pack(weight / 10)) for weight in (wide, narrow)))
    computed = jax.jit(backend.mlp_block)(x, weights, jnp.int32(7))
    expected = reference(x, weights, jnp.int32(7))
    np.testing.assert_allclose(computed, expected, atol=close)
print("right")
"""


@pytest.fixture(params=["amx", "avx512bf16", "avx512,amx", "avx512,amx,avxvnni"])
def lesser_cpu(request, tmp_path) -> dict[str, str]:
    """The environment of a process that does not use some instruction sets of this CPU."""
    if not any(name.startswith(request.param.split(",")[-1]) for name in features_of_this_cpu()):
        pytest.skip("this CPU lacks them anyway")
    apart = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return os.environ | apart | {"EAGLE_JAX_CPU_WITHOUT": request.param}


@pytest.mark.proof
def test_code_for_cpus_without_an_instruction(lesser_cpu):
    command = [sys.executable, "-c", PRODUCTS_OF_A_LESSER_CPU]
    made = subprocess.run(command, env=lesser_cpu, capture_output=True, text=True)
    assert made.stdout.strip() == "right", made.stderr


@pytest.mark.proof
def test_bits_are_the_same_without_an_instruction(lesser_cpu):
    """Tests of this folder once more: bits of products on every CPU, the largest sums, one token in any tree."""
    files = [str(Path(__file__).with_name(name)) for name in ("test_cpu_quantized.py", "test_bits.py")]
    chosen = "every_cpu or largest_sums or bfloat16-int4-int8"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *files, "-k", chosen]
    made = subprocess.run(command, env=lesser_cpu, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0 and "27 passed" in made.stdout, made.stdout + made.stderr


def test_an_instruction_set_that_nobody_knows_is_refused(monkeypatch):
    from eagle_jax.ops.cpu import code

    monkeypatch.setenv(code.WITHOUT, "mmx2")
    with pytest.raises(ValueError, match="EAGLE_JAX_CPU_WITHOUT has mmx2; expected beginnings of "):
        code._host_features.__wrapped__()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux gives the permission")
@pytest.mark.parametrize(("status", "allowed"), [(0, True), (-1, False)])
def test_amx_is_used_with_linuxs_permission(status: int, allowed: bool, monkeypatch: pytest.MonkeyPatch):
    """Without it the first use of its registers would end the process."""
    from eagle_jax.ops.cpu import code, hardware

    asked = []
    monkeypatch.setattr(code, "features", lambda: code.AMX)
    monkeypatch.setattr(hardware, "is_x86", lambda: True)
    monkeypatch.setattr(hardware, "_arch_prctl", lambda *what: asked.append(what) or status)
    monkeypatch.setattr(hardware, "allows_amx", hardware.allows_amx.__wrapped__)
    assert code.has_amx() == allowed and asked == [(0x1023, 18)]


def features_of_this_cpu() -> frozenset[str]:
    from eagle_jax.ops.cpu.code import features

    return features()


def three(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Path]]:
    """What a function made in a cache folder returns, and the files there."""
    import ctypes

    from llvmlite import ir

    from eagle_jax.ops.cpu.code import I64, Code, i64

    def build(module: ir.Module) -> None:
        function = ir.Function(module, ir.FunctionType(I64, []), "three")
        ir.IRBuilder(function.append_basic_block("entry")).ret(i64(3))

    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    code = Code("numbers", build)
    return ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("three"))(), sorted(folder.rglob("*.o"))


def test_code_is_kept_and_a_damaged_file_is_made_again(tmp_path, monkeypatch):
    value, (path,) = three(tmp_path, monkeypatch)
    assert value == 3 and path.parent.stat().st_mode & 0o777 == 0o700
    whole = path.read_bytes()
    assert three(tmp_path, monkeypatch) == (3, [path]) and path.read_bytes() == whole
    for damaged in (b"", whole[:-1], whole[:100] + b"\x90" + whole[101:]):
        path.write_bytes(damaged)
        assert three(tmp_path, monkeypatch) == (3, [path])
        assert path.read_bytes() == whole


def test_nothing_is_kept_where_programs_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_JAX_COMPILATION_CACHE", "off")
    assert three(tmp_path, monkeypatch) == (3, [])


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "eagle_jax").write_text("no folder")
    assert three(tmp_path, monkeypatch) == (3, [])


NEVER_ASKED = """
import jax.numpy as jnp
from eagle_jax.ops import matmul
from eagle_jax.ops.cpu.backend import pack
print(matmul(jnp.ones((1, 4)), pack(jnp.ones((16, 4))))[0, 0])
"""


def test_panels_are_multiplied_in_a_process_that_never_asked():
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    made = subprocess.run([sys.executable, "-c", NEVER_ASKED], env=environment, capture_output=True, text=True)
    assert made.stdout.strip() == "4.0", made.stderr


def test_it_can_be_switched_off(monkeypatch):
    weight = jnp.ones((16, 4))
    monkeypatch.setenv(ops.VARIABLE, "")
    assert isinstance(ops.pack(weight), Panels)
    monkeypatch.setenv(ops.VARIABLE, "xla")
    assert not isinstance(ops.pack(weight), Panels)
    monkeypatch.setattr(backend, "linear", lambda *_: pytest.fail("it is switched off"))
    np.testing.assert_array_equal(ops.matmul(jnp.ones((1, 4)), ops.pack(weight)), np.full((1, 16), 4.0))
    monkeypatch.setenv(ops.VARIABLE, "off")
    with pytest.raises(ValueError, match="EAGLE_JAX_OPS='off' has 'off'; expected a backend"):
        ops.pack(weight)


def test_without_llvmlite_or_with_an_unknown_xla_it_is_left_to_xla(monkeypatch, caplog):
    from eagle_jax.ops.cpu import library

    monkeypatch.setattr(library, "_compiled", {})
    mismatch = "the version of XLA's FFI is 1.0; expected 0.3 or a later 0.x"
    for owner, name, value, reason in (
        (library.ffi_abi, "mismatch", lambda: mismatch, mismatch),
        (library, "features", lambda: frozenset({"sse2"}), "this CPU lacks one of avx2, fma"),
        (library, "Code", lambda *_: (_ for _ in ()).throw(OSError("libLLVM.so is damaged")), "libLLVM.so is damaged"),
    ):
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "eagle_jax.ops"):
            patch.setattr(owner, name, value)
            if name == "features":
                patch.setattr(library, "is_x86", lambda: True)
            assert backend._build_error.__wrapped__() == reason
        assert caplog.messages[-1] == f"products and attention are left to XLA, which takes longer: {reason}"
    monkeypatch.delattr(eagle_jax.ops.cpu, "library")
    monkeypatch.setitem(sys.modules, "eagle_jax.ops.cpu.library", None)
    assert "library" in backend._build_error.__wrapped__()


def test_exp_is_within_what_it_says(tmp_path, monkeypatch):
    import ctypes

    from llvmlite import ir

    from eagle_jax.ops.cpu.code import FLOATS, POINTER, VECTOR, VOID, Code, at, constant, for_range, i64, read, write
    from eagle_jax.ops.cpu.math import scaled_exp

    numbers = np.concatenate([np.linspace(-80, 7, 2**16, dtype=np.float32), np.full(16, -1e30, np.float32)])

    def build(module: ir.Module) -> None:
        function = ir.Function(module, ir.FunctionType(VOID, [POINTER]), "exp_of_all")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        with for_range(builder, i64(len(numbers) // 16)) as index:
            place = at(builder, function.args[0], index, VECTOR)
            write(builder, scaled_exp(builder, read(builder, place, FLOATS), constant(10.0)), place)
        builder.ret_void()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, found = Code("exponentials", build), numbers.copy()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("exp_of_all"))(found.ctypes.data)
    np.testing.assert_allclose(found[:-16], np.exp(numbers[:-16].astype(np.float64)) / 2**10, rtol=2e-7)
    assert not found[-16:].any()


def test_attention_weighs_scores_that_lie_far_apart():
    """Over one key and one that scores up to 100 lower."""
    lower = np.linspace(0, 100, 4001, dtype=np.float32)
    q = jnp.ones((len(lower), 1, 1, 16), jnp.float32)
    keys = jnp.stack([jnp.zeros((len(lower), 16)), jnp.tile(-lower[:, None] / 16, (1, 16))], axis=1)[:, None]
    values = jnp.stack([jnp.zeros((len(lower), 16)), jnp.ones((len(lower), 16))], axis=1)[:, None]
    fresh = jnp.zeros((len(lower), 1, 1, 16))
    case = ops.AttentionCall(
        q=q, fresh=(fresh - 100, fresh), visible=jnp.ones((len(lower), 1, 1), bool), prefix=(keys, values),
        length=jnp.full(len(lower), 2, jnp.int32), first=None, softcap=None,
    )  # fmt: skip
    found = np.asarray(jax.jit(backend.tree_attention)(case))[:, 0, 0, 0].astype(np.float64)
    wanted = 1 / (1 + np.exp(lower.astype(np.float64)))
    usual = lower < 80
    np.testing.assert_allclose(found[usual], wanted[usual], rtol=1e-5)
    np.testing.assert_allclose(found, wanted, atol=1e-7)
