"""The manifest of a job: the settings that all answers in its output share, so that no others are mixed in."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_jax.checks import check_same_settings
from eagle_jax.converters import resolve
from eagle_jax.durable import atomic_write
from eagle_jax.loading.folders import folders_of

VERSION = 2  # of the manifest and of the output's lines
MODEL_SUFFIXES = {".json", ".safetensors", ".bin", ".pt", ".model", ".jinja"}  # files of a model's folder
NUM_SAMPLES, SAMPLE_BYTES = 64, 4096  # per file, evenly spaced


def manifest_path(output: Path) -> Path:
    """Returns the path of an output's manifest: `answers.jsonl.job.json`."""
    return output.with_name(f"{output.name}.job.json")


def begin(output: Path, job: Mapping[str, Any]) -> bool:
    """Writes the manifest, or compares an existing one with the job's settings.

    Returns:
        Whether the job's output is complete already.

    Raises:
        ValueError: the output exists without a manifest, or with other settings. Nothing is changed then.
    """
    path, settings = manifest_path(output), {"form": VERSION, **job}
    if path.exists():
        check_same_settings(output, read(output), settings, "name another output")
        return output.exists()
    if output.exists():
        raise ValueError(f"{output} exists and was not written by a batch job; name another output")
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(json.dumps(settings, ensure_ascii=False, indent=1).encode() + b"\n")
    return False


def read(output: Path) -> dict[str, Any]:
    """Returns the manifest of an output. Raises ValueError if there is none."""
    path = manifest_path(output)
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected the parts of a batch job and its manifest")
    try:
        job = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(job, dict) or type(job.get("rows")) is not int or type(job.get("hosts")) is not int:
        raise ValueError(f"{path} is not the manifest of a batch job; name another output")
    return job


def fingerprints(
    target: str | Path | None = None,
    head: str | Path | None = None,
    *,
    draft: str | Path | None = None,
    datastore: str | Path | None = None,
) -> dict[str, str | None]:
    """Returns fingerprints of the parts of the model that `load` loads with these arguments; None for absent parts."""
    folder, head_folder = folders_of(target, head)
    paths = {
        "target": folder,
        "head": head_folder,
        "draft_model": None if draft is None else resolve(draft),
        "datastore": None if datastore is None else Path(datastore),
    }
    return {name: None if path is None else fingerprint(path) for name, path in paths.items()}


def fingerprint(path: Path) -> str:
    """Returns 16 hexadecimal digits that depend only on the content of a file or model folder.

    Large files are sampled: different weights differ nearly everywhere, and reading all bytes takes minutes.
    """
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in MODEL_SUFFIXES)
    for file in files:
        size = file.stat().st_size
        digest.update(f"{'' if file is path else file.name} {size}\n".encode())
        with file.open("rb") as opened:
            step = max(size // NUM_SAMPLES, SAMPLE_BYTES)
            for offset in range(0, size, step):
                opened.seek(offset)
                digest.update(opened.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
