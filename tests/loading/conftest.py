"""A stored pair for tests of what `load` makes of files."""

import pathlib

import pytest
from speller import END, SPELLER, TOKENIZER

from eagle_jax.converters import save_head, save_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """SPELLER, stored as people store models."""
    target, head = (tmp_path_factory.mktemp(name) for name in ("target", "head"))
    save_target(SPELLER.target, target, extra={"eos_token_id": END})
    save_head(SPELLER.head, head, target=SPELLER.target)
    TOKENIZER.save_pretrained(target)
    return target, head
