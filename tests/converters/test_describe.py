"""What a folder holds."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from folders import ENTRIES, entries, head, head3, refused, target, tensors, write
from safetensors.numpy import load_file

from eagle_jax.converters import describe, load_target, save_head, save_target


def test_target(tmp_path: pathlib.Path):
    save_target(target(), tmp_path)
    told = describe(tmp_path)
    assert (told.kind, told.format, told.problem) == ("target", "llama", None)
    values = tensors(target())
    assert told.tensors == len(values)
    assert told.parameters == sum(value.size for value in values.values())
    assert told.dtypes == {"float32": told.parameters}
    assert told.files == {"model.safetensors": (tmp_path / "model.safetensors").stat().st_size}
    assert (told.config["vocab_size"], told.config["rope"]["theta"]) == (11, 10000.0)


def test_head(tmp_path: pathlib.Path):
    save_head(head(), tmp_path)
    told = describe(tmp_path)
    assert (told.kind, told.problem) == ("EAGLE-1/2 head", None)
    assert told.config["fc_bias"]
    assert told.config["layers"]["num_key_value_heads"] == 2


def test_eagle3(tmp_path: pathlib.Path):
    stated = entries(head3())
    told = describe(write(tmp_path, tensors(head3()), stated))
    assert (told.kind, told.problem) == ("EAGLE-3 head", None)
    assert (told.config["taps"], told.config["draft_vocab_size"]) == ([0, 1, 2], 5)
    assert told.dtypes == {"float32": told.parameters - 5 - 11, "int64": 5, "bool": 11}
    del stated["eagle_config"]
    told = describe(write(tmp_path, tensors(head3()), stated))
    assert told.config["taps"] == "2, N//2 and N - 3 of a target of N layers"


def test_part_of_an_eagle3_head(tmp_path: pathlib.Path):
    told = describe(write(tmp_path, {"d2t": np.zeros(3, np.int64)}))
    assert (told.kind, told.dtypes) == ("EAGLE-3 head", {"int64": 3})
    assert told.problem is not None and "fc.weight" in told.problem


def test_names_of_two_formats(tmp_path: pathlib.Path):
    told = describe(write(tmp_path, tensors(head3()) | tensors(head3(), "speculators"), entries(head3())))
    assert told.kind == "unknown"
    assert told.problem is not None and "midlayer.*" in told.problem


def test_what_would_not_load(tmp_path: pathlib.Path):
    told = describe(write(tmp_path, tensors(target()), ENTRIES | {"model_type": "phi"}))
    assert (told.kind, told.format) == ("target", "phi")
    assert told.problem is not None and "'phi'" in told.problem
    assert told.config["model_type"] == "phi"
    told = describe(write(tmp_path, {"anything": np.zeros((2, 3), np.float32)}))
    assert (told.kind, told.parameters) == ("unknown", 6)
    assert told.problem is not None


def test_a_model_without_its_output_matrix(tmp_path: pathlib.Path):
    """As transformers' `AutoModel` saves it: names that are nearly a draft head's."""
    save_target(target(), tmp_path / "whole")
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    bare = {name.removeprefix("model."): value for name, value in weights.items() if name != "lm_head.weight"}
    entries = json.loads((tmp_path / "whole" / "config.json").read_text())
    (tmp_path / "bare").mkdir()
    found = describe(write(tmp_path / "bare", bare, entries))
    assert found.kind == "target" and "AutoModel saves it; save it with AutoModelForCausalLM" in found.problem
    with refused(ValueError, "save it with AutoModelForCausalLM"):
        load_target(tmp_path / "bare")


def test_plain_json(tmp_path: pathlib.Path):
    save_head(head(), tmp_path)
    told = dataclasses.asdict(describe(tmp_path))
    assert json.loads(json.dumps(told)) == told


def test_nothing_there(tmp_path: pathlib.Path):
    with refused(FileNotFoundError, "no model folder"):
        describe(tmp_path / "nothing")
    with refused(FileNotFoundError, "holds no weights"):
        describe(tmp_path)
    with refused(FileNotFoundError, "config.json is missing"):
        write(tmp_path, {"a": np.zeros(1, np.float32)}).joinpath("config.json").unlink()
        describe(tmp_path)


@pytest.mark.parametrize("kind", ["not JSON", "[]"])
def test_broken_config(tmp_path: pathlib.Path, kind: str):
    write(tmp_path, {"a": np.zeros(1, np.float32)}).joinpath("config.json").write_text(kind)
    with refused(ValueError, "config.json"):
        describe(tmp_path)
