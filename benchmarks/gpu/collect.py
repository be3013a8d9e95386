"""What `benchmarks/gpu.sh` writes: one JSON file, and a Markdown page that is made of it alone."""

import datetime
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

from benchmarks.common.tables import markdown

REHEARSAL = "**A rehearsal with tiny shapes on a CPU: it shows that all of it runs. Its times mean nothing.**"
SYNTHETIC = "Pairs are synthetic: published shapes, random weights, acceptance by construction (common/synthetic.py)."


def machine() -> dict[str, str]:
    """What the benchmarks run on. The process has to end before they do, since it takes the device's memory."""
    import jax

    device, commit = jax.devices()[0], ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "date": datetime.date.today().isoformat(),
        "jax": jax.__version__,
        "python": sys.version.split()[0],
        "commit": subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip(),
    }


def begin(folder: pathlib.Path, here: dict[str, str], tiny: bool) -> pathlib.Path:
    """The JSON file of this device and day, begun if it is not there.

    Raises:
        ValueError: there is no GPU.
    """
    if here["platform"] != "gpu" and not tiny:
        raise ValueError(f"JAX sees no GPU here, only {here['device']}; take one with CUDA, or --tiny")
    kind = "rehearsal" if tiny else re.sub(r"[^a-z0-9]+", "-", here["device"].lower()).strip("-")
    path = folder / f"{kind}-{here['date']}.json"
    folder.mkdir(parents=True, exist_ok=True)
    earlier = json.loads(path.read_text()) if path.exists() else {"questions": {}}
    write(path, earlier | {"rehearsal": tiny, "machine": here})
    return path


def add(path: pathlib.Path, name: str, state: str, tables: pathlib.Path) -> None:
    """Adds a question's tables; of those with one title the last."""
    results = json.loads(path.read_text())
    lines = tables.read_text().splitlines() if tables.exists() else []
    titled = {table["title"]: table for table in map(json.loads, filter(lambda line: line.endswith("}"), lines))}
    results["questions"][name] = {"state": state, "commit": results["machine"]["commit"], "tables": [*titled.values()]}
    write(path, results)


def write(path: pathlib.Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(results))


def page(results: dict[str, Any]) -> str:
    here = results["machine"]
    parts = [f"# {here['device']}, {here['date']}", *([REHEARSAL] if results["rehearsal"] else [])]
    parts += [", ".join(f"{name} {here[name]}" for name in ("jax", "python", "commit")), SYNTHETIC]
    for name, question in results["questions"].items():
        parts += [f"## {name}", f"{question['state']}."]
        for table in question["tables"]:
            parts += [table["title"], markdown(table["columns"], table["rows"])]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    match sys.argv[1:]:
        case ["begin", folder, *tiny]:
            try:
                print(begin(pathlib.Path(folder), machine(), bool(tiny)))
            except (OSError, ValueError) as error:
                raise SystemExit(str(error)) from None
        case ["add", path, name, state, tables]:
            add(pathlib.Path(path), name, state, pathlib.Path(tables))
        case _:
            raise SystemExit("begin FOLDER [--tiny], or add FILE NAME STATE TABLES")


if __name__ == "__main__":
    main()
