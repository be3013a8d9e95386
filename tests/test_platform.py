"""The guard against jaxlib 0.10.2's wrong CPU sums, each case in a process of its own: XLA reads flags once."""

import os
import subprocess
import sys

import jaxlib
import pytest

from eagle_jax.platform import BAD_JAXLIB, FLAG, SAFE_VALUE

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


# Prints with how many threads XLA computes after `begin`, and whether the process has its environment back.
COUNT_THREADS = """
import os, pathlib
{begin}
import jax, jax.numpy as jnp
many = jnp.ones((1000, 1000))
jax.block_until_ready(many @ many)
names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
print(names.count("tf_XLAEigen"), "PJRT_NPROC" in os.environ)
"""
SMALL = "import eagle_jax; eagle_jax.load()"
SEVERAL = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0


def threads(begin: str, **environment: str) -> list[str]:
    return run(COUNT_THREADS.format(begin=begin), **environment).stdout.split()


@pytest.mark.skipif(SEVERAL == 0, reason="threads are counted in /proc")
def test_a_small_model_starts_jax_with_one_thread():
    assert threads(SMALL) == ["1", "False"]


def test_a_larger_model_that_comes_later_is_warned_of():
    later = "from eagle_jax import platform; platform.start_cpu_for(2**30)"
    assert "RuntimeWarning: JAX was started with one CPU thread" in run(f"{SMALL}\n{later}").stderr
    assert "RuntimeWarning" not in run(f"{SMALL}\n{later}", PJRT_NPROC="2").stderr


@pytest.mark.skipif(SEVERAL == 0, reason="threads are counted in /proc")
@pytest.mark.parametrize(
    ("begin", "environment", "count"),
    [
        (SMALL, {"PJRT_NPROC": "3"}, "3"),
        (SMALL, {"NPROC": "3"}, "3"),
        ("import jax; jax.devices(); " + SMALL, {"NPROC": "3"}, "3"),
        (SMALL, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, "4"),
        (SMALL, {"JAX_NUM_CPU_DEVICES": "4"}, "4"),
        ("from eagle_jax import platform; platform.start_cpu_for(2**30)", {}, str(SEVERAL)),
    ],
    ids=["PJRT_NPROC is kept", "NPROC is kept", "already running", "virtual devices", "several devices", "large model"],
)
def test_otherwise_its_threads_are_left_alone(begin, environment, count):
    assert threads(begin, **environment)[0] == count
