"""docs/figures/make.py on a made-up step, and the figures that it made: they are there, small, and whole."""

import importlib.util
import pathlib
import types
import xml.etree.ElementTree as ElementTree

import pytest

from eagle_jax import api

FIGURES = pathlib.Path(__file__).parents[2] / "docs" / "figures"
TOKENIZER = types.SimpleNamespace(decode=lambda ids: " ".join(f"t{token}" for token in ids))
#  node:    0 - 1 - 3      4 is no guess
#           +-- 2
CYCLE = api.Step([5, 6, 7, 8, 9], [-1, 0, 0, 1, 2], [True] * 4 + [False], [6, 8, 1, 2, 0], [0, 1, 3])


@pytest.fixture(scope="module")
def make() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("make_figures", FIGURES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def elements(svg: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}" + name))


def test_the_mask_is_what_the_nodes_see(make):
    boxes = elements(make.mask(TOKENIZER, CYCLE, [1, 2, 3]), "rect")
    seen = [box.get("class") == "c2" for box in boxes if box.get("class") != "c7"]
    rows = [[column for column in range(4) if seen[4 * row + column]] for row in range(4)]
    assert rows == [[0], [0, 1], [0, 2], [0, 1, 3]]
    assert len(boxes) == 4 * 3 + 4 * 4  # every node sees all three committed tokens


def test_the_answer_is_cut_where_its_passes_end(make):
    stats = types.SimpleNamespace(steps=2, accepted_lengths=[3, 1])
    result = types.SimpleNamespace(token_ids=[1, 2, 3, 4, 5], stats=stats)
    svg = make.answer(TOKENIZER, result)
    looks = [box.get("class") for box in elements(svg, "rect")][:5]
    assert looks == [f"node {look}" for look in ("drawn", "taken", "taken", "drawn", "drawn")]
    assert "5 tokens in 2 steps of draft and verification, after prefill." in svg


def test_the_tree_is_drawn_with_its_path(make):
    looks = [box.get("class") for box in elements(make.tree(TOKENIZER, CYCLE), "rect")]
    assert looks.count("node taken") == 3 and looks.count("node left") == 1 and looks.count("node drawn") == 1


@pytest.mark.parametrize("name", ["answer", "tree", "mask"])
def test_the_pages_figures_are_there(name):
    path = FIGURES / f"{name}.svg"
    assert path.stat().st_size < 200_000 and elements(path.read_text(), "rect")
