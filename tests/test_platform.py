"""The guard against jaxlib 0.10.2's wrong CPU sums, each case in a process of its own: XLA reads flags once."""

import os
import subprocess
import sys

import jaxlib
import pytest

from eagle_jax.workarounds import BAD_JAXLIB, FLAG, SAFE_VALUE

only_bad_jaxlib = pytest.mark.skipif(jaxlib.__version__ != BAD_JAXLIB, reason=f"jaxlib {BAD_JAXLIB} alone has this bug")

# The published reproducer (jax#39103); prints the largest difference between the compiled sums and NumPy's.
REPRODUCER = """
import jax, jax.numpy as jnp, numpy as np
rows = np.random.default_rng(0).normal(size=(32769, 3)).astype(np.float32)
sums = jax.jit(jax.vmap(lambda r: jnp.sum((jnp.eye(3) @ r) ** 2)))(rows)
print(np.abs(sums - (rows**2).sum(1)).max())
"""

# Prints whether XLA hands a bfloat16 matmul to the fast library.
FAST_MATMUL = """
import jax, jax.numpy as jnp
dot = jax.jit(lambda a, b: jax.lax.dot(a, b, preferred_element_type=jnp.float32))
shapes = jax.ShapeDtypeStruct((8, 2048), jnp.bfloat16), jax.ShapeDtypeStruct((2048, 512), jnp.bfloat16)
print("__ynn_fusion" in dot.lower(*shapes).compile().as_text())
"""

PRINT_FLAGS = "import os; print(os.environ.get('XLA_FLAGS'))"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


def test_sums_are_right_with_the_guard():
    assert float(run("import eagle_jax\n" + REPRODUCER).stdout) < 1e-4


@only_bad_jaxlib
def test_sums_are_wrong_without_the_guard():
    assert float(run(REPRODUCER).stdout) > 1e-2


@only_bad_jaxlib
def test_the_guard_works_after_jax_is_imported():
    assert float(run("import jax, jax.numpy\nimport eagle_jax\n" + REPRODUCER).stdout) < 1e-4


@only_bad_jaxlib
def test_the_guard_keeps_the_fast_bf16_matmul():
    assert run("import eagle_jax\n" + FAST_MATMUL).stdout.strip() == "True"
    assert run(FAST_MATMUL, XLA_FLAGS=f"{FLAG}=").stdout.strip() == "False"  # the blunt remedy loses it


@only_bad_jaxlib
def test_the_guard_keeps_the_users_other_flags():
    ours = f"{FLAG}={SAFE_VALUE}"
    assert run("import eagle_jax\n" + PRINT_FLAGS).stdout.strip() == ours
    theirs = "--xla_dump_max_hlo_modules=5"
    assert run("import eagle_jax\n" + PRINT_FLAGS, XLA_FLAGS=theirs).stdout.strip() == f"{theirs} {ours}"


def test_a_value_the_user_chose_stays():
    assert run("import eagle_jax\n" + PRINT_FLAGS, XLA_FLAGS=f"{FLAG}=").stdout.strip() == f"{FLAG}="


@only_bad_jaxlib
def test_a_running_backend_is_reported():
    late = run("import jax; jax.devices(); import eagle_jax")
    assert "RuntimeWarning: JAX was already running when eagle_jax was imported" in late.stderr
    assert "import eagle_jax before the first JAX computation" in late.stderr


@pytest.mark.skipif(jaxlib.__version__ == BAD_JAXLIB, reason="needs another jaxlib")
def test_other_versions_are_left_alone():
    assert run("import eagle_jax\n" + PRINT_FLAGS).stdout.strip() == "None"
