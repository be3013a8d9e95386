"""Every test runs with strict dtypes, no implicit rank promotion, checked shapes and four virtual CPU devices."""

import os
import pathlib
from collections.abc import Callable, Iterator

import hypothesis
import jax
import pytest

# Most of the suite's time is compiling; unoptimised code compiles two to four times faster (23.7 s became 5.4 s for the
# 60-node loop) and computes the same.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)

# A busy machine is no failure, and every run tries the same examples.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")

# Compiled programs are kept between runs. Each xdist worker has its own folder: JAX writes entries in place, and a
# worker must never read another's half-written one.
_cache = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax" / os.environ.get("PYTEST_XDIST_WORKER", "main")
jax.config.update("jax_compilation_cache_dir", str(_cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# What the user measured on this machine is not for tests.
os.environ["XDG_CACHE_HOME"] = str(_cache.parent / "user")


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """Compiled programs take gigabytes over the whole suite, and modules share few of them."""
    yield
    jax.clear_caches()


@pytest.fixture
def getkey() -> Callable[[], jax.Array]:
    """A function that returns a new PRNG key on each call, the same ones in every run."""

    def keys() -> Iterator[jax.Array]:
        key = jax.random.key(0)
        while True:
            key, fresh = jax.random.split(key)
            yield fresh

    return keys().__next__
