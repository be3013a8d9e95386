"""Every test runs with strict dtypes, no implicit rank promotion, checked shapes and four virtual CPU devices."""

import contextlib
import importlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import hypothesis
import jax
import jaxlib.version
import pytest

# Most of the suite's time is compiling; unoptimised code compiles two to four times faster (23.7 s became 5.4 s for the
# 60-node loop) and computes the same. Without XLA's fusion emitters half of the rest goes too: four programs took 21.4
# CPU seconds and take 9.6. Later jaxlibs (seen with 0.11.2 and 0.12) do not know that flag, and end a process given it.
FAST = ["--xla_backend_optimization_level=0"]
EMITTERS = "xla_cpu_use_fusion_emitters"
if jaxlib.version.__version_info__ < (0, 11):
    FAST.append(f"--{EMITTERS}=false")
if FAST[0].split("=")[0] not in os.environ.get("XLA_FLAGS", ""):  # xdist's workers inherit it; on a GPU it is chosen
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *FAST))

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)

# A busy machine is no failure, and every run tries the same examples.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")

# Compiled programs are kept, the smallest too: a module begins with an empty memory, and adding two numbers takes 20 ms
# to compile and 1 ms to read. Each xdist worker writes into a folder of its own, since JAX writes entries in place and
# none must read another's half-written one; between modules they exchange whole files. Without the last line keys
# would depend on the folder.
_kept = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"
_cache = _kept / os.environ.get("PYTEST_XDIST_WORKER", "main")
jax.config.update("jax_compilation_cache_dir", str(_cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")

# What the user measured on this machine is not for tests.
os.environ["XDG_CACHE_HOME"] = str(_kept / "user")


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """Compiled programs take gigabytes over the whole suite; what modules share they find on disk."""
    for source, to in ((_cache, _kept / "all"), (_kept / "all", _cache)):
        source.mkdir(parents=True, exist_ok=True)
        to.mkdir(parents=True, exist_ok=True)
        for name in {*os.listdir(source)}.difference(os.listdir(to)):
            with contextlib.suppress(FileExistsError):  # another worker was faster
                os.link(source / name, to / name)
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def fused() -> dict[str, bool]:
    """Compiler options for a program that is to be as users have it, in memory and copies."""
    return {EMITTERS: True} if len(FAST) > 1 else {}


@pytest.fixture
def getkey() -> Callable[[], jax.Array]:
    """A function that returns a new PRNG key on each call, the same ones in every run."""

    def keys() -> Iterator[jax.Array]:
        key = jax.random.key(0)
        while True:
            key, fresh = jax.random.split(key)
            yield fresh

    return keys().__next__


@pytest.fixture(scope="session")
def api() -> ModuleType:
    """`eagle_jax.api` without the type checker of the test run, which would speak before our own sentences do.

    The facade's rooms are imported once more; the rooms below and the compiled programs are the same.
    """
    import eagle_jax  # not above: the type checker is installed after this file is read

    rooms = ("checks", "text", "loading", "tuning", "scheduling", "inspection", "jobs", "api")
    again = [
        name
        for name in sys.modules
        if name.split(".")[0] == "eagle_jax" and name.split(".")[1:2] and name.split(".")[1] in rooms
        if name != "eagle_jax.scheduling.programs"
    ]
    finders = [finder for finder in sys.meta_path if type(finder).__module__.startswith("jaxtyping")]
    with pytest.MonkeyPatch.context() as patch:
        for room in rooms:  # the import below replaces them; undone, they are the checked ones
            patch.setattr(eagle_jax, room, getattr(eagle_jax, room))
        patch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder not in finders])
        for name in again:
            patch.delitem(sys.modules, name)
        fresh = importlib.import_module("eagle_jax.api")
        for name in [name for name in sys.modules if name in again]:
            patch.delitem(sys.modules, name)  # undone in reverse order: the checked ones come back
    assert sys.modules["eagle_jax.api"] is not fresh
    return fresh
