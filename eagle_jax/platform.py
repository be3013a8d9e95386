"""What must be right about the installed JAX before it computes anything, and where this machine keeps things."""

import hashlib
import os
import pathlib
import platform
import tempfile
import warnings

import jax
import jaxlib
from jax._src import xla_bridge

# jaxlib 0.10.2 sums wrongly on CPU when its YNN library fuses a long batched reduction (jax#39103). Taking only
# reductions away from the library gives right sums and keeps its fast bf16 matmul; an empty list would give right sums
# too, but bf16 matmuls several times slower.
BAD_JAXLIB = "0.10.2"
FLAG = "--xla_cpu_experimental_ynn_fusion_type"
SAFE_VALUE = "-LIBRARY_FUSION_TYPE_REDUCE"

# "off" leaves compiled programs in memory alone.
KEEPING = "EAGLE_JAX_COMPILATION_CACHE"
JAX_KEEPS_FROM = 1.0  # seconds of compiling from which JAX keeps a program unless it is told otherwise


def guard_cpu_reductions() -> None:
    """Makes jaxlib 0.10.2 sum correctly on CPU; does nothing under any other version.

    Adds one flag to `XLA_FLAGS`, which XLA reads when its first backend starts. A value that the user has chosen stays.
    Warns (RuntimeWarning) when the CPU backend is already running without the flag: results may then be wrong.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib.__version__ != BAD_JAXLIB or FLAG in flags:
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}={SAFE_VALUE}".strip()
    if xla_bridge.backends_are_initialized() and jax.default_backend() == "cpu":
        warnings.warn(
            f"JAX was already running when eagle_jax was imported, and jaxlib {BAD_JAXLIB} can sum wrongly on CPU "
            f"(jax#39103); import eagle_jax before the first JAX computation, or set XLA_FLAGS={FLAG}={SAFE_VALUE}",
            RuntimeWarning,
            stacklevel=3,
        )


def whole_sums() -> dict[str, str]:
    """Compiler options that keep XLA:CPU from cutting every softmax and norm into windows of 32 before it adds them up.

    A sum over a whole large matrix is then made number after number, and far less exact; one over its rows is not. On
    other devices there are no options. Asking which device it is starts JAX's backend.
    """
    return {"xla_disable_hlo_passes": "tree_reduction_rewriter"} if jax.default_backend() == "cpu" else {}


def keep_programs() -> None:
    """Keeps compiled programs on disk from now on, so that the next process does not compile them again.

    They lie in `eagle_jax/compiled` of the user's cache folder. Nothing is changed where JAX was given a folder already
    (JAX_COMPILATION_CACHE_DIR or jax.config), where its cache is switched off, or with EAGLE_JAX_COMPILATION_CACHE=off.
    Every kind of processor has a folder of its own, since programs are made of its instructions and a home may be
    shared by many machines; and every jaxlib, whose programs no other one reads.

    Warns (RuntimeWarning) when the folder cannot be written; programs are not kept then.

    Raises:
        ValueError: EAGLE_JAX_COMPILATION_CACHE is neither "on" nor "off".
    """
    given = getattr(jax.config, "jax_compilation_cache_dir")
    if not _keeps() or given or not getattr(jax.config, "jax_enable_compilation_cache"):
        return
    try:
        folder = _folder_of_programs(f"jaxlib-{jaxlib.__version__}")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        warnings.warn(
            f"compiled programs are not kept ({error}); let JAX_COMPILATION_CACHE_DIR name a folder that can be "
            f"written, or set {KEEPING}=off",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # The smallest are kept too: loading a model runs dozens, and each takes 20 ms to compile and 1 ms to read.
    if getattr(jax.config, "jax_persistent_cache_min_compile_time_secs") == JAX_KEEPS_FROM:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def programs_folder(maker: str) -> pathlib.Path | None:
    """Where programs of another maker than XLA are kept; None where they cannot be, or are not to be."""
    try:
        return _folder_of_programs(maker) if _keeps() else None
    except OSError:
        return None


def _keeps() -> bool:
    wanted = os.environ.get(KEEPING, "on")
    if wanted not in ("on", "off"):
        raise ValueError(f'{KEEPING}={wanted!r} is not known; expected "on" or "off"')
    return wanted == "on"


def _folder_of_programs(maker: str) -> pathlib.Path:
    """A folder for programs of this processor."""
    folder = cache_folder() / "compiled" / f"{maker}-{_processor()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who may write there decides what is run
    return folder


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products; without them they are ten times slower than float32."""
    flags = _cpu_facts().get("flags", "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def cache_folder() -> pathlib.Path:
    """Where this user's machine keeps what can be made again: `eagle_jax` in XDG_CACHE_HOME, or in ~/.cache.

    Raises:
        FileNotFoundError: the user has no home.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return pathlib.Path(named or pathlib.Path.home() / ".cache") / "eagle_jax"
    except RuntimeError:
        raise FileNotFoundError("this user has no home; let XDG_CACHE_HOME name a folder to keep things in") from None


def _processor() -> str:
    """What programs for this processor have in common, as sixteen hexadecimal digits."""
    facts = _cpu_facts()
    kind = [platform.machine(), *(facts.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name"))]
    can = sorted(facts.get("flags", facts.get("Features", platform.processor())).split())
    return hashlib.sha256("\n".join([*kind, *can]).encode()).hexdigest()[:16]


def _cpu_facts() -> dict[str, str]:
    """What Linux tells of the first core; nothing elsewhere."""
    try:
        first = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
