"""Code that needs a function which the process lacks is noticed before LLVM's JIT ends the process over it."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("llvmlite")

from llvmlite import ir  # noqa: E402

from eagle_jax.ops.cpu import symbols  # noqa: E402
from eagle_jax.ops.cpu.code import I64, Code, declare  # noqa: E402


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def calling(*names: str):
    """Builds a function that calls others."""

    def build(module: ir.Module) -> None:
        function = ir.Function(module, ir.FunctionType(I64, []), "caller")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        results = [builder.call(declare(module, name, ir.FunctionType(I64, [])), []) for name in names]
        builder.ret(results[-1])

    return build


def test_an_unknown_function_is_noticed_before_it_is_linked():
    with pytest.raises(NotImplementedError) as error:
        Code("unknown", calling("pthread_self", "eagle_jax_no_such_function", "eagle_jax_nor_this"))
    reason = "machine code needs eagle_jax_no_such_function, eagle_jax_nor_this, which this process does not have"
    assert str(error.value) == reason


def test_functions_of_the_process_are_found():
    assert Code("known", calling("pthread_self", "getpid")).address("caller")


def test_undefined_names_of_an_object(monkeypatch):
    made = []
    monkeypatch.setattr(symbols, "unresolved", lambda data: made.append(data) or [])
    Code("object", calling("pthread_self", "getpid"))
    assert {"pthread_self", "getpid"} <= set(symbols.undefined(made[0]))
    assert "caller" not in symbols.undefined(made[0])


def test_another_kind_of_object_is_refused():
    with pytest.raises(NotImplementedError, match="object files of this platform are neither ELF nor Mach-O"):
        symbols.undefined(b"MZ" + bytes(100))


UNKNOWN_TO_A_BACKEND = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from llvmlite import ir
from eagle_jax.ops.cpu import backend, code, float_products
build = float_products.build
def with_unknown(module):
    build(module)
    function = ir.Function(module, ir.FunctionType(code.I64, []), "caller")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    builder.ret(builder.call(ir.Function(module, function.function_type, "eagle_jax_no_such_function"), []))
float_products.build = with_unknown
import jax.numpy as jnp
from eagle_jax import ops
weight = ops.pack(jnp.ones((16, 4)))
print(type(weight).__name__, float(ops.matmul(jnp.ones((1, 4)), weight)[0, 0]))
"""


@pytest.mark.proof
def test_a_backend_that_needs_an_unknown_function_is_not_used(tmp_path):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path), "EAGLE_JAX_OPS": ""}
    made = subprocess.run(
        [sys.executable, "-c", UNKNOWN_TO_A_BACKEND], env=environment, capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr
    warning, result = made.stdout.splitlines()
    assert warning.endswith("machine code needs eagle_jax_no_such_function, which this process does not have")
    assert result == "Transposed 4.0"
