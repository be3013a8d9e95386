"""What public `config.json` files say, as `public_configs.json` notes it: which are read, and why others are not.

Each case has the `files` that say the same (repository: path), what they are (`kind`), their `entries` without
book-keeping (of families that are not read only their names), the keys that are `passed_over`, and for what they are
`refused`. They come from AngelSlim, EAGLE, SpecForge, TorchSpec, ome, Intel's extension for PyTorch, LLMServingSim,
rtp-llm and Spec-Bench; those of Gemma 4 from ollama, whose tests state the facts of E2B and E4B, and from two quantized
models of the hub.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from eagle_jax.converters import config_from_hf, quant_config
from eagle_jax.converters.heads.entries import read_entries
from tests.converters.public_configs import CASES


def read(case: Mapping[str, Any]) -> None:
    if case["kind"] == "target":
        config_from_hf(quant_config.without_quantization(case["entries"]))
    else:
        read_entries(case["entries"], eagle3=case["kind"] == "eagle3")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["files"][0])
def test_a_public_config(case: Mapping[str, Any], caplog):
    if not case["refused"]:
        read(case)
    else:
        with pytest.raises(ValueError) as caught:
            read(case)
        assert not [reason for reason in case["refused"] if reason not in str(caught.value)]
    passed_over = [key for line in caplog.messages for key in line.split(": ")[1].split(", ")]
    assert passed_over == ([] if case["refused"] else case["passed_over"])


def test_how_many_are_read():
    read_of = {
        kind: sum(len(case["files"]) for case in CASES if case["kind"] == kind and not case["refused"])
        for kind in ("target", "eagle1", "eagle3")
    }
    assert read_of == {"target": 56, "eagle1": 9, "eagle3": 46}
