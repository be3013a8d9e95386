"""Measurements of candidates on disk, and the table of choices for tracing."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib

from eagle_jax.durable import update_json
from eagle_jax.platform import cache_folder, processor

VERSION = 1
REFERENCE = "xla"
ENDED = "the process ended during its trial"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The measurement of one candidate for one class of calls.

    Attributes:
        device: kind of the device, and the versions of JAX and its library.
        operation, shape: the class of calls.
        candidate: name of a backend, or of the reference.
        seconds: seconds of a call for each number of rows; None if it was not timed.
        error: largest deviation from the reference, relative to its largest number; None if it was not compared.
        reason: why the candidate must not be used; empty if it may.
    """

    device: str
    operation: str
    shape: str
    candidate: str
    seconds: tuple[float, ...] | None = None
    error: float | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.device, self.operation, self.shape, self.candidate


@functools.cache
def device() -> str:
    """Returns the device of findings: its kind (of CPUs the fingerprint) and the versions of the compilers."""
    first = jax.devices()[0]
    kind = f"cpu {processor()}" if first.platform == "cpu" else f"{first.platform} {first.device_kind}"
    return f"{kind}, jax {jax.__version__}, jaxlib {jaxlib.__version__}"


def path() -> Path:
    """Returns the file of findings."""
    return cache_folder() / "operations.json"


def read() -> list[Finding]:
    """Returns all findings; none if the file is missing, damaged or of another version."""
    try:
        content = json.loads(path().read_text())
        if not isinstance(content, dict) or content.get("version") != VERSION:
            return []
        return [finding for entry in content["findings"] if (finding := _finding(entry)) is not None]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _finding(entry: Any) -> Finding | None:
    """Parses an entry of the file; None if it is invalid."""
    try:
        finding = Finding(**{**entry, "seconds": entry["seconds"] and tuple(map(float, entry["seconds"]))})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return finding if all(isinstance(text, str) for text in (*finding.key, finding.reason)) else None


def save(findings: Iterable[Finding]) -> None:
    """Adds findings to the file atomically; a finding replaces an earlier one with the same key."""

    def content() -> dict[str, Any]:
        by_key = {finding.key: finding for finding in (*read(), *findings)}
        return {"version": VERSION, "findings": [dataclasses.asdict(finding) for finding in by_key.values()]}

    update_json(path(), content)


def fastest(findings: Iterable[Finding]) -> dict[tuple[str, str], str]:
    """Returns the fastest correct candidate of each operation and shape, by the sum over numbers of rows."""
    best: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if finding.reason or finding.seconds is None:
            continue
        key = finding.operation, finding.shape
        if key not in best or sum(finding.seconds) < sum(best[key].seconds or ()):
            best[key] = finding
    return {key: finding.candidate for key, finding in best.items()}


_table: dict[tuple[str, str], str] | None = None


def table() -> Mapping[tuple[str, str], str]:
    """Returns the choices of this process: those on disk at the first call, and those that `refresh` added."""
    if _table is None:
        refresh()
    assert _table is not None
    return _table


def refresh(*, anew: bool = False) -> None:
    """Reads the choices on disk. A choice that traced programs may depend on stays, unless `anew`."""
    global _table
    fastest_on_disk = fastest(finding for finding in read() if finding.device == device())
    _table = fastest_on_disk if anew or _table is None else fastest_on_disk | _table
