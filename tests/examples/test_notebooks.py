"""Every notebook of examples/ runs from its first cell to its last, on the shipped pair, and is committed clean."""

import json
import pathlib
import re
import sys
import types

import pytest

import eagle_jax

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[2] / "examples").glob("*.ipynb"))
# What takes the place of the values in cells that are tagged "parameters".
SMALLER = {"train_a_head": {"QUESTIONS": 12, "ANSWER_TOKENS": 24, "STEPS": 3}}


def cells(path: pathlib.Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.proof
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, capsys):
    shown: list[object] = []
    display = types.SimpleNamespace(SVG=str, HTML=str, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path, "code")):
        source = re.sub(
            r"^( *)%pip .*$", r"\1raise AssertionError('it is installed')", "".join(cell["source"]), flags=re.M
        )
        exec(compile(source, f"{path.name}, code cell {number}", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert SMALLER[path.stem].keys() <= names.keys()
            names |= SMALLER[path.stem]
    assert capsys.readouterr().out
    assert all(picture.lstrip().startswith(("<svg", "<!doctype html>")) for picture in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_clean(path):
    text = json.loads(path.read_text())
    assert (text["nbformat"], text["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in text["cells"]}) == len(text["cells"])
    for cell in cells(path, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None
    title, install = ("".join(cell["source"]) for cell in text["cells"][:2])
    assert title.startswith("# ") and "colab-badge.svg" in title
    pinned = re.findall(r"%pip install --quiet \"eagle-jax(.*)==(.*)\"", install)
    assert pinned == [("{extra}", eagle_jax.__version__)], "the first cell installs the version that it was tested with"
