"""Sections one after the other, and their results on disk after every one."""

import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from gpu import record, report, targets
from gpu.machine import ROOT
from gpu.sections import SECTIONS, Section

BAD = ("failed", "ended")  # what a section that did not come to its end is called
SHORTEST = 15  # seconds under which no section is begun
TEMPORARY = "temporary"  # folder of a section's own files


class Run:
    """One run.

    Args:
        path: of the JSON file; the Markdown page lies beside it.
        machine: what it runs on.
        environment: of the sections.
        tiny: whether it is a rehearsal.
        minutes: for all of them.
        sections: what is there already.
    """

    def __init__(
        self,
        path: pathlib.Path,
        machine: dict[str, Any],
        environment: dict[str, str],
        tiny: bool,
        minutes: float,
        sections: dict[str, Any],
    ):
        self.path, self.machine, self.environment, self.tiny = path, machine, environment, tiny
        self.deadline, self.sections = time.monotonic() + 60 * minutes, sections

    def all(self, names: list[str], scratch: pathlib.Path) -> None:
        """Runs them, and writes what there is after each, and when they are broken off."""
        for at, name in enumerate(names):
            began = time.monotonic()
            shutil.rmtree(scratch / TEMPORARY, ignore_errors=True)  # a section that was ended leaves its weights there
            (scratch / TEMPORARY).mkdir()
            try:
                state, error = self._one(name, names[at + 1 :], scratch / f"{name}.jsonl", scratch / f"{name}.log")
            except KeyboardInterrupt:
                self._note(name, "broken off", None, began, scratch)
                raise SystemExit(f"broken off in {name}; what there is is in {self.path}") from None
            self._note(name, state, error, began, scratch)

    def _note(self, name: str, state: str, error: str | None, began: float, scratch: pathlib.Path) -> None:
        seconds = time.monotonic() - began
        found = record.tables(scratch / f"{name}.jsonl")
        self.sections[name] = {"state": state, "error": error, "seconds": round(seconds, 1), "tables": found}
        if state in BAD:
            log = scratch / f"{name}.log"
            said = log.read_text(errors="replace").replace(str(ROOT), ".") if log.exists() else ""
            self.sections[name]["log"] = said.splitlines()[-40:]
        self.sections[name]["commit"] = self.machine["commit"]
        print(f"{name}: {state} after {seconds:.0f} s{'' if error is None else f': {error}'}", flush=True)
        self._write()

    def limit(self, name: str, after: list[str], left: float) -> float:
        """Seconds that a section may take: its own, or what is left when those after it have theirs."""
        theirs = sum(SECTIONS[other].limit for other in after if self._lacking(other) is None)
        return min(left, max(SECTIONS[name].limit, left - theirs))

    def _lacking(self, name: str) -> str | None:
        """What it needs and is not there."""
        section = SECTIONS[name]
        if section.checkout is not None and not self.environment.get(section.checkout):
            return f"{section.checkout} names no checkout"
        if section.package is not None and importlib.util.find_spec(section.package) is None:
            return f"{section.package} is not installed"
        return None

    def _one(self, name: str, after: list[str], rows: pathlib.Path, log: pathlib.Path) -> tuple[str, str | None]:
        """How a section ended, and its last line if it failed."""
        lacking = self._lacking(name)
        if lacking is not None:
            return "left out", lacking
        left = self.deadline - time.monotonic()
        if left < SHORTEST:
            return "left out", f"no time was left; run it alone with --only {name}"
        limit = left if self.tiny else self.limit(name, after, left)  # a rehearsal may be on a busy machine
        command = [sys.executable, "-m", "gpu.section", name, str(rows), "tiny" if self.tiny else "full"]
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(self.environment, SECTIONS[name]),
                start_new_session=True,
            )
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                return "ended", f"it took longer than {limit:.0f} s"
            finally:
                _end(process)
        return ("done", None) if process.returncode == 0 else ("failed", _last_line(log, process.returncode))

    def _write(self) -> None:
        order = [name for name in SECTIONS if name in self.sections]
        results = {
            "format": 1,
            "rehearsal": self.tiny,
            "machine": self.machine,
            "targets": targets.held({} if self.tiny else self.sections),
            "sections": {name: self.sections[name] for name in order},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for path, text in (
            (self.path, json.dumps(results, indent=1) + "\n"),
            (self.path.with_suffix(".md"), report.markdown(results)),
        ):
            staged = path.with_name(f".{path.name}")
            staged.write_text(text, encoding="utf-8")
            staged.replace(path)


def environment(common: dict[str, str], section: Section) -> dict[str, str]:
    """Of a section's process."""
    own = dict(section.environment)
    if section.flags:
        own["XLA_FLAGS"] = f"{common.get('XLA_FLAGS', '')} {section.flags}".strip()
    return common | own


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a section with all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _last_line(log: pathlib.Path, code: int) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    how = f" (ended by signal {-code})" if code < 0 else ""
    return f"{lines[-1][:500]}{how}" if lines else f"it ended with {code} and said nothing"
