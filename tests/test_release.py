"""What is released works where the repository is not: the wheel made of the source archive, in a bare environment."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
import yaml

import eagle_jax

ROOT = pathlib.Path(__file__).parents[1]
PAIR = ("config.json", "model.safetensors")


def build(kind: str, source: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (made,) = to.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> pathlib.Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory) -> pathlib.Path:
    """The wheel that the source archive makes, without the repository."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.mark.proof
def test_the_archive_holds_the_project_and_nothing_else(archive):
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "mkdocs.yml", "tests/test_release.py"} <= names
    assert not [name for name in names if name.startswith((".ci", ".venv", "runs", "build")) or "__pycache__" in name]
    assert archive.stat().st_size < 30e6


@pytest.mark.proof
def test_the_wheel_holds_the_package_with_the_shipped_pair(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    info = f"eagle_jax-{eagle_jax.__version__}.dist-info/"
    assert all(name.startswith(("eagle_jax/", info)) for name in names)
    pair = {f"eagle_jax/pair/{part}/{name}" for part in ("target", "head", "head_eagle3") for name in PAIR}
    assert pair | {"eagle_jax/py.typed", "eagle_jax/pair/target/tokenizer.json", f"{info}licenses/LICENSE"} <= set(
        names
    )
    assert wheel.stat().st_size < 30e6


@pytest.mark.proof
def test_the_wheel_answers_in_a_bare_environment(wheel, tmp_path):
    bare, elsewhere = tmp_path / "bare", tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=120)
    python = bare / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    # Nothing is downloaded: what the package depends on is lent by the environment of this test, by its folder alone,
    # so that an editable install in it stays unseen.
    (packages,) = (bare / "lib").glob("python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")

    away = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    asked = [bare / "bin" / "eagle-jax", "generate", "Tom has 3 apples.", "--max-new-tokens", "8", "--json"]
    said = subprocess.run(asked, cwd=elsewhere, env=away, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0 and '"token_ids"' in said.stdout, said.stderr
    where = "import importlib.util; print(importlib.util.find_spec('eagle_jax').origin)"
    found = subprocess.run([python, "-c", where], cwd=elsewhere, env=away, capture_output=True, text=True, check=True)
    assert pathlib.Path(found.stdout.strip()).is_relative_to(bare)


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == eagle_jax.__version__ and cited["license"] == "Apache-2.0"
    assert {"title", "authors", "message", "cff-version"} <= cited.keys()


def test_public_ci_runs_make_targets_with_pinned_actions():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["check"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
    makefile = (ROOT / "Makefile").read_text()
    targets = [step["run"].removeprefix("make ") for step in steps if step.get("run", "").startswith("make ")]
    assert targets == ["lint", "types", "docs", "test", "matrix", "proofs", "tpu", "cuda"]
    assert all(f"\n{name}: " in makefile for name in targets)
