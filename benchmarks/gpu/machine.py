"""What a benchmark ran on."""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]

_PROBE = """
import importlib.util, json, jax, jaxlib
device = jax.devices()[0]
torch = None
if importlib.util.find_spec("torch") is not None:
    import importlib.metadata
    torch = importlib.metadata.version("torch")
stats = device.memory_stats() or {}
print(json.dumps({"platform": device.platform, "device": device.device_kind, "devices": jax.device_count(),
    "memory_GB": stats.get("bytes_limit", 0) / 1e9, "jax": jax.__version__, "jaxlib": jaxlib.__version__,
    "torch": torch}))
"""


def probe(environment: dict[str, str]) -> dict[str, Any]:
    """The device and the versions, asked for in another process: this one must not hold the device's memory.

    Raises:
        RuntimeError: JAX does not start.
    """
    command = [sys.executable, "-c", _PROBE]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if shown.returncode:
        said = shown.stderr.strip().splitlines() or [f"it ended with {shown.returncode} and said nothing"]
        raise RuntimeError(f"JAX does not start here: {said[-1]}")
    found = json.loads(shown.stdout.splitlines()[-1])
    found |= {"python": sys.version.split()[0], "cores": os.cpu_count(), "commit": _commit()}
    return found | {"date": datetime.date.today().isoformat(), "excluded": excluded(found["jax"])}


def excluded(version: str) -> str | None:
    """A sentence about a JAX that the project leaves out; None of one that it takes, or if nothing here can tell."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = next(one for one in map(Requirement, project["dependencies"]) if one.name == "jax")
    if wanted.specifier.contains(version, prereleases=True):
        return None
    return f"pyproject.toml leaves jax {version} out ({wanted}): failures and slowness may be that version's own."


def slug(machine: dict[str, Any]) -> str:
    """The device's kind and the date, as files are called."""
    kind = re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    return f"{kind}-{machine['date']}"


def _commit() -> str | None:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    return shown.stdout.strip() or None
