"""What a model's `generation_config.json` recommends, and what of it nothing here follows."""

import json
import logging
import pathlib
from typing import Any

import pytest

from eagle_jax.loading.generation_config import generation_options


def options(folder: pathlib.Path, **entries: Any) -> dict[str, Any]:
    (folder / "generation_config.json").write_text(json.dumps(entries))
    return generation_options(folder)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"eos_token_id": 2}, {"temperature": 0.0}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.0}),  # greedy, whatever else it says
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True, "top_k": 20, "min_p": None}, {"temperature": 1.0, "top_k": 20}),
        ({"repetition_penalty": 1.05, "max_new_tokens": 9}, {"repetition_penalty": 1.05, "max_new_tokens": 9}),
        ({"min_new_tokens": 3}, {"min_tokens": 3}),
        ({"do_sample": True, "temperature": [0.6], "top_p": "0.9", "top_k": True}, {"temperature": 1.0}),
    ],
)
def test_under_generates_names(tmp_path: pathlib.Path, entries: dict[str, Any], expected: dict[str, Any]):
    assert options(tmp_path, **entries) == {"temperature": 0.0} | expected


def test_no_file_recommends_nothing(tmp_path: pathlib.Path):
    assert generation_options(tmp_path) == {}


def test_what_is_not_followed_is_said(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "eagle_jax.loading"):
        options(tmp_path, num_beams=1, no_repeat_ngram_size=0, eos_token_id=[1, 2], pad_token_id=0)
        assert not caplog.records
        options(tmp_path, do_sample=True, temperature=0.7, suppress_tokens=[5], forced_eos_token_id=2)
    recommended, unfollowed = [record.getMessage() for record in caplog.records]
    assert "recommends temperature=0.7; --generation-config follows it" in recommended
    assert "sets suppress_tokens=[5], forced_eos_token_id=2, which eagle_jax does not follow" in unfollowed
