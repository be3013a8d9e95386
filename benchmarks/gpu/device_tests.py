"""Is what runs here right here? The tests of the kernels and of synthetic pairs, on this device."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from gpu.record import Record
from gpu.scale import Scale

ROOT = pathlib.Path(__file__).parents[2]
SUITES = ("tests/ops/test_on_gpu.py", "tests/benchmarks/test_synthetic.py", "tests/ops/test_int4_gpu.py")


def run(scale: Scale, record: Record) -> None:
    failed: list[str] = []
    for suite in SUITES[:1] if scale.tiny else SUITES:
        try:
            counts, first = passed(suite)
        except RuntimeError as error:  # one that ends the process must not keep the next from being run
            counts, first = {}, str(error)
        record("tests", suite=suite, **counts)
        failed += [f"{suite}: {first}"] if first else []
    if failed:
        raise AssertionError(f"tests failed; the first of each suite: {'; '.join(failed)}")


def passed(suite: str) -> tuple[dict[str, int], str | None]:
    """What pytest counted, and the first test that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        # The suite's own options need more packages than the tests do. Triton's lowering warns that it will go.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", suite]
        if importlib.util.find_spec("beartype") is None:
            command += ["-o", "addopts="]
        command += ["-W", "ignore::DeprecationWarning"]
        # The suite compiles without optimising, which is no test of what runs here.
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=3".strip()
        shown = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise RuntimeError(f"pytest did not run {suite}: {(shown.stdout + shown.stderr).strip()[-300:]}")
        return _counts(ElementTree.parse(report).getroot())


def _counts(root: ElementTree.Element) -> tuple[dict[str, int], str | None]:
    cases = list(root.iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {"passed": len(cases) - len(bad) - skipped, "failed": len(bad), "skipped": skipped}
    return counts, _told(bad[0]) if bad else None


def _told(case: ElementTree.Element) -> str:
    why = next(child for child in case if child.tag in ("failure", "error"))
    return f"{case.get('classname')}::{case.get('name')}: {(why.get('message') or '')[:300]}"
