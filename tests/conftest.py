"""Every test runs with strict dtypes, no implicit rank promotion, checked shapes and four virtual CPU devices."""

import contextlib
import functools
import hashlib
import importlib
import os
import pathlib
import shutil
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
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

# Compiled programs are kept, the smallest too: adding two numbers takes 20 ms to compile and 1 ms to read. Each process
# has a folder of its own, since JAX writes entries in place and none must read another's half-written one; between
# modules processes exchange whole files by a folder that outlives the checkout. Without the last line keys would depend
# on the folder. Programs are made of a processor's instructions, so each kind has its own.
_here = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"
_cache = _here / os.environ.get("PYTEST_XDIST_WORKER", "main")
_shared = pathlib.Path(os.environ.get("EAGLE_JAX_TEST_PROGRAMS") or pathlib.Path.home() / ".cache/eagle_jax/tests")
MOST_KEPT = 2**31  # bytes
jax.config.update("jax_compilation_cache_dir", str(_cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")

# Where no model is named, tests take the one that needs no download.
os.environ["EAGLE_JAX_TARGET"] = "toy"

# What the user measured on this machine is not for tests.
os.environ["XDG_CACHE_HOME"] = str(_here / "user")
os.environ["EAGLE_JAX_MEASURE"] = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-row", action="store_true", help="run one row of each test that is marked matrix")
    parser.addoption("--sample", type=int, default=1, help="run one test in so many, of every file")
    parser.addoption("--sample-by", default="", help="what chooses tests and rows, such as a commit: each has others")


@pytest.hookimpl(trylast=True)  # after marks and names have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every, chosen_by = config.getoption("--sample"), config.getoption("--sample-by")

    def number(item: pytest.Item) -> int:
        return zlib.crc32((chosen_by + item.nodeid).encode())

    def test_of(item: pytest.Item) -> str:
        return item.nodeid.partition("[")[0]

    kept = items
    if config.getoption("--one-row"):
        marked = [item for item in sorted(items, key=number) if item.get_closest_marker("matrix")]
        one = {test_of(item): item for item in marked}
        kept = [item for item in kept if not item.get_closest_marker("matrix") or one[test_of(item)] is item]
    kept = [item for item in kept if number(item) % every == 0]
    if rest := {*items}.difference(kept):
        config.hook.pytest_deselected(items=list(rest))
        items[:] = kept


_traced_with: dict[str, str] = {}


def _trace_anew() -> None:
    """Drops what was traced with other settings of operations: a traced function does not know them."""
    settings = {name: os.environ[name] for name in ("EAGLE_JAX_OPS", "EAGLE_JAX_ACTIVATIONS") if name in os.environ}
    if settings != _traced_with:
        jax.clear_caches()
        if programs := sys.modules.get("eagle_jax.scheduling.programs"):
            programs._programs.clear()
        _traced_with.clear()
        _traced_with.update(settings)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    _trace_anew()  # for what fixtures have set, and after tests that set something
    return (yield)


@pytest.fixture
def set_operations(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets environment variables of operations in the midst of a test."""

    def set_variables(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        _trace_anew()

    return set_variables


@functools.cache
def _exchange() -> pathlib.Path:
    """The folder by which processes of this kind of processor exchange programs; the oldest make room for new ones."""
    with contextlib.suppress(OSError):
        facts = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        kind = [line for line in facts if line.startswith(("model", "flags", "Features", "CPU"))]
        folder = _shared / hashlib.sha256("\n".join(kind).encode()).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who may write there decides what is run
        files = sorted(((file, file.stat()) for file in folder.iterdir()), key=lambda item: item[1].st_mtime)
        size = sum(stat.st_size for _, stat in files)
        while size > MOST_KEPT:
            file, stat = files.pop(0)
            file.unlink(missing_ok=True)
            size -= stat.st_size
        return folder
    return _here / "all"


def _share_programs() -> None:
    for source, to in ((_cache, _exchange()), (_exchange(), _cache)):
        source.mkdir(parents=True, exist_ok=True)
        to.mkdir(parents=True, exist_ok=True)
        for name in {*os.listdir(source)}.difference(os.listdir(to)):
            with contextlib.suppress(FileExistsError, FileNotFoundError):  # another process was faster
                try:
                    os.link(source / name, to / name)
                except FileExistsError:
                    raise
                except OSError:  # another disk
                    partly = to / f".{name}.{os.getpid()}"
                    shutil.copyfile(source / name, partly)
                    partly.replace(to / name)


def _is_full() -> bool:
    """Whether compiled programs take much of what a process may have: gigabytes, or memory maps, of which Linux allows
    65,530, after which XLA ends the process.
    """
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        with open("/proc/self/maps") as maps:
            return pages * os.sysconf("SC_PAGE_SIZE") > 3 * 2**30 or sum(1 for _ in maps) > 25_000
    except OSError:
        return True


@pytest.fixture
def room_for_programs() -> Iterator[None]:
    """For tests that compile much each."""
    yield
    if _is_full():
        jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def _programs() -> Iterator[None]:
    _share_programs()
    _trace_anew()  # before engines that a module's tests share are warmed up
    yield
    if _is_full():
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

    rooms = ("checks", "text", "structured", "chat", "loading", "methods", "requests", "scheduling")
    rooms += ("inspection", "tuning", "jobs", "api")
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
