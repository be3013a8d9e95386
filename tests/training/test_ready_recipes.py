"""The settings that are shipped ready can be read, and say what they need."""

import pathlib

import pytest

from eagle_jax.training.config import read_config

RECIPES = pathlib.Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_file_of_settings_is_valid(path):
    config = read_config(path)
    assert config.out.startswith("runs/")
    text = path.read_text()
    assert f"eagle-jax train {path.relative_to(RECIPES.parent)}" in text and "Memory" in text
