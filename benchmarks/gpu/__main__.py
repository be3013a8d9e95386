"""Benchmarks on one large GPU, as many as nine minutes hold, the most important first, and without a network.

Runs each section in a process of its own, under a time limit of its own, and writes one JSON file and one Markdown page
under benchmarks/results/, called by the kind of device and the date. What fails is written down as failed, with its
last lines; what there is when a run is broken off stays, and `--only` runs what was left out. `--tiny` rehearses
everything with tiny shapes on the CPU.

More is measured by two commands than by one, and both write into the same day's files:

    benchmarks/gpu.sh --only decode,cycle,speedup,kernels
    benchmarks/gpu.sh --only batch,tests,large,peers

Compiled programs, and XLA's choice of kernels for them, stay for the next command in the folder that
JAX_COMPILATION_CACHE_DIR names, or else in eagle_jax/benchmarks of the user's cache folder.

The original PyTorch EAGLE and gpt-fast are asked where EAGLE_CHECKOUT and GPT_FAST_CHECKOUT name checkouts of them;
EAGLE_PYTHON or EAGLE_PACKAGES (GPT_FAST_ likewise) name the Python that runs one, or a folder of packages for it.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import signal
import tempfile

from gpu import machine
from gpu.run import BAD, TEMPORARY, Run
from gpu.sections import SECTIONS

RESULTS = pathlib.Path(__file__).parents[1] / "results"


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, _break_off)
    with tempfile.TemporaryDirectory(prefix="eagle-jax-gpu-") as scratch:
        environment = _environment(pathlib.Path(scratch), options.tiny)
        try:
            found = machine.probe(environment)
        except RuntimeError as error:
            raise SystemExit(str(error)) from error
        if found["platform"] != "gpu" and not options.tiny:
            raise SystemExit(
                f"JAX sees no GPU here, only {found['device']}; run this where there is one, with a CUDA build of JAX, "
                "or rehearse it with --tiny"
            )
        try:
            options.into.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=options.into).close()
        except OSError as error:
            raise SystemExit(f"--into {options.into} cannot be written into: {error.strerror}") from error
        name = f"rehearsal-{found['date']}" if options.tiny else machine.slug(found)
        path = options.into / f"{name}.json"
        earlier = json.loads(path.read_text()) if options.only and path.exists() else {"sections": {}}
        run = Run(path, found, environment, options.tiny, options.minutes, earlier["sections"])
        run.all(options.only or list(SECTIONS), pathlib.Path(scratch))
    print(f"{path}\n{path.with_suffix('.md')}")
    bad = [name for name in options.only or SECTIONS if run.sections[name]["state"] in BAD]
    if bad:
        raise SystemExit(f"{', '.join(bad)}: not to the end; the reasons are in {path}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="rehearse with tiny shapes on the CPU; needs --into")
    parser.add_argument("--into", type=pathlib.Path, default=None, help="folder for the results (benchmarks/results)")
    parser.add_argument("--minutes", type=float, default=8.75, help="for all sections together (default: %(default)s)")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=None, metavar="NAMES",
        help=f"these sections, of {', '.join(SECTIONS)}; today's others stay as they are",
    )  # fmt: skip
    options = parser.parse_args()
    if options.tiny and options.into is None:
        parser.error("--tiny writes nothing into benchmarks/results; say with --into where its results go")
    unknown = [name for name in options.only or [] if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; expected some of {', '.join(SECTIONS)}")
    options.into = options.into or RESULTS
    return options


def _break_off(*_: object) -> None:
    raise KeyboardInterrupt


def _environment(scratch: pathlib.Path, tiny: bool) -> dict[str, str]:
    """Of the sections: compiled programs are shared among them, and nothing that the user has tuned plays a part."""
    own = {
        "JAX_COMPILATION_CACHE_DIR": str(scratch / "compiled" if tiny else _compiled()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "xla_gpu_per_fusion_autotune_cache_dir",
        "XDG_CACHE_HOME": str(scratch / "user"),
        "TMPDIR": str(scratch / TEMPORARY),
        "JAX_TRACEBACK_FILTERING": "off",  # else the last line of a log is a note on what JAX left out
    }
    if tiny:  # nothing is timed in earnest, and unoptimised code compiles several times faster
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
        own |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return os.environ | own


def _compiled() -> pathlib.Path:
    """Where programs stay, one folder for each jaxlib; JAX keeps XLA's choice of kernels beside them."""
    given = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if given:
        return pathlib.Path(given)
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return caches / "eagle_jax" / "benchmarks" / f"jaxlib-{importlib.metadata.version('jaxlib')}"


if __name__ == "__main__":
    main()
