"""What a job's answers depend on, kept next to its output, so that nothing else is mixed into them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_jax.checks import check_same_settings
from eagle_jax.converters import resolve
from eagle_jax.durable import replacing
from eagle_jax.loading.folders import folders_of

FORM = 2  # of the manifest, and of the lines that go with it
KINDS = {".json", ".safetensors", ".bin", ".pt", ".model", ".jinja"}  # files of a folder that a model is made of
SAMPLES, SAMPLE = 64, 4096  # of each file: so many pieces of so many bytes, evenly spread


def manifest_of(output: Path) -> Path:
    """Returns where the manifest of an output is: `answers.jsonl.job.json`."""
    return output.with_name(f"{output.name}.job.json")


def begin(output: Path, job: Mapping[str, Any]) -> bool:
    """Keeps what the job depends on, or holds it against what is there.

    Returns:
        Whether the job's output is complete already.

    Raises:
        ValueError: the output is there and no job's, or a job's that depends on something else. Nothing is changed.
    """
    path, stated = manifest_of(output), {"form": FORM, **job}
    if path.exists():
        check_same_settings(output, read(output), stated, "name another output")
        return output.exists()
    if output.exists():
        raise ValueError(f"{output} is there already and was made by no batch job; name another output")
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(json.dumps(stated, ensure_ascii=False, indent=1).encode() + b"\n")
    return False


def read(output: Path) -> dict[str, Any]:
    """Returns the manifest of an output. Raises ValueError if there is none."""
    path = manifest_of(output)
    if not path.exists():
        raise ValueError(f"{path} is not there; expected the parts of a batch job, with what it was begun with")
    try:
        job = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(job, dict) or type(job.get("rows")) is not int or type(job.get("hosts")) is not int:
        raise ValueError(f"{path} is not what a batch job writes; name another output")
    return job


def fingerprints(
    target: str | Path | None = None,
    head: str | Path | None = None,
    *,
    draft: str | Path | None = None,
    datastore: str | Path | None = None,
) -> dict[str, str | None]:
    """Returns fingerprints of the parts of the model that `load` makes of these arguments; None for absent ones."""
    folder, head_folder = folders_of(target, head)
    paths = {
        "target": folder,
        "head": head_folder,
        "draft_model": None if draft is None else resolve(draft),
        "datastore": None if datastore is None else Path(datastore),
    }
    return {name: None if path is None else fingerprint(path) for name, path in paths.items()}


def fingerprint(path: Path) -> str:
    """Returns 16 digits that depend on the content of a file or model folder alone, not on its path.

    Of large files it reads samples: other weights differ nearly everywhere, and reading all of them takes minutes.
    """
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in KINDS)
    for file in files:
        size = file.stat().st_size
        digest.update(f"{'' if file is path else file.name} {size}\n".encode())
        with file.open("rb") as opened:
            step = max(size // SAMPLES, SAMPLE)
            for at in range(0, size, step):
                opened.seek(at)
                digest.update(opened.read(SAMPLE))
    return digest.hexdigest()[:16]
