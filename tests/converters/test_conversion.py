"""From one format to another, tensor for tensor."""

import json
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
from folders import ENTRIES, assert_same, entries, head, head3, refused, target, tensors, write
from safetensors.numpy import load_file

from eagle_jax.converters import convert, load_head, quantize, save_head
from eagle_jax.converters.heads.eagle_formats import FORMATS
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.ops.quantized import QuantArray, dense

HEADS = {"eagle1": head(), "eagle3": head3()}


@pytest.fixture
def the_target(tmp_path: pathlib.Path) -> pathlib.Path:
    """A target's folder, of which only the config is there."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ENTRIES))
    return folder


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("to", FORMATS)
def test_every_format_to_every_other(tmp_path: pathlib.Path, the_target: pathlib.Path, name: str, source: str, to: str):
    made: DraftHead = HEADS[name]
    save_head(made, tmp_path / "source", format=source)
    convert(tmp_path / "source", tmp_path / "new", to, target=the_target)
    written = load_file(tmp_path / "new" / "model.safetensors")
    expected = tensors(made, to)
    assert set(written) == set(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(written[key], value)
    assert_same(load_head(tmp_path / "new", target()), made)


def test_each_tensor_keeps_its_dtype(tmp_path: pathlib.Path):
    values = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors(head()).items()}
    values["fc.bias"] = tensors(head())["fc.bias"]
    values["embed_tokens.weight"] = np.zeros((11, 8), np.float16)
    convert(write(tmp_path, values, entries(head())), tmp_path / "new", "safeailab")
    written = load_file(tmp_path / "new" / "model.safetensors")
    assert {name: value.dtype for name, value in written.items()} == {name: v.dtype for name, v in values.items()}
    convert(tmp_path, tmp_path / "served", "sglang")
    assert "embed_tokens.weight" not in load_file(tmp_path / "served" / "model.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_head_as_floats(tmp_path: pathlib.Path, the_target: pathlib.Path, dtype: str):
    """For a reader that does not know integers: every tensor is a float, the value that is computed with."""
    save_head(head3(), tmp_path / "head")
    quantize(tmp_path / "head", tmp_path / "int8", "int8")
    convert(tmp_path / "int8", tmp_path / "new", "speculators", target=the_target, dtype=dtype)
    assert "quantization_config" not in json.loads((tmp_path / "new" / "config.json").read_text())
    written = load_file(tmp_path / "new" / "model.safetensors")
    floats = {value.dtype for name, value in written.items() if name not in ("d2t", "t2d")}
    assert floats == {np.dtype(dtype)} and set(written) == set(tensors(head3(), "speculators"))
    as_stored = load_head(tmp_path / "int8", target())
    expanded = load_head(tmp_path / "new", target())
    difference = jax.tree.map(
        lambda a, b: np.abs(np.asarray(dense(a), np.float32) - np.asarray(b, np.float32)).max(),
        as_stored.params,
        expanded.params,
        is_leaf=lambda leaf: isinstance(leaf, QuantArray),
    )
    assert max(jax.tree.leaves(difference)) <= (0 if dtype == "float32" else 2**-8)


def test_an_embedding_stays_with_an_eagle3_head(tmp_path: pathlib.Path):
    values = tensors(head3()) | {"embed_tokens.weight": np.zeros((11, 8), np.float32)}
    convert(write(tmp_path, values, entries(head3())), tmp_path / "new", "sglang")
    assert "embed_tokens.weight" in load_file(tmp_path / "new" / "model.safetensors")


def test_what_the_target_is_needed_for(tmp_path: pathlib.Path, the_target: pathlib.Path):
    save_head(head3(), tmp_path / "head")
    with refused(ValueError, "names the target", "give its folder"):
        convert(tmp_path / "head", tmp_path / "new", "speculators")
    stated = {name: value for name, value in entries(head3()).items() if name != "eagle_config"}
    (tmp_path / "head" / "config.json").write_text(json.dumps(stated))
    with refused(ValueError, "eagle_aux_hidden_state_layer_ids", "default"):
        convert(tmp_path / "head", tmp_path / "new", "sglang")
    (the_target / "config.json").write_text(json.dumps(ENTRIES | {"num_hidden_layers": 12}))
    convert(tmp_path / "head", tmp_path / "new", "speculators", target=the_target)
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    assert written["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert written["speculators_config"]["verifier"]["name_or_path"] == str(the_target)


def test_a_pair_names_its_target(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_head(head(), tmp_path / "head")
    (tmp_path / "lmsys/vicuna-7b-v1.3").mkdir(parents=True)
    (tmp_path / "lmsys/vicuna-7b-v1.3/config.json").write_text(json.dumps(ENTRIES))
    convert("head", "new", "speculators", target="vicuna-7b-v1.3")
    verifier = json.loads((tmp_path / "new/config.json").read_text())["speculators_config"]["verifier"]
    assert verifier["name_or_path"] == "lmsys/vicuna-7b-v1.3"


def test_changes(tmp_path: pathlib.Path):
    save_head(head(), tmp_path / "head")
    convert(tmp_path / "head", tmp_path / "new", "safeailab", changes={"rope_theta": 7.0})
    assert json.loads((tmp_path / "new" / "config.json").read_text())["rope_theta"] == 7.0


def test_what_is_refused(tmp_path: pathlib.Path, the_target: pathlib.Path):
    save_head(head3(), tmp_path / "head")
    with refused(ValueError, "'gguf'", "safeailab"):
        convert(tmp_path / "head", tmp_path / "new", "gguf")
    with refused(FileExistsError, str(tmp_path / "head"), "holds a model already (config.json, model.safetensors)"):
        convert(tmp_path / "head", tmp_path / "head", "sglang")
    with refused(FileExistsError, str(the_target), "holds a model already (config.json)"):
        convert(tmp_path / "head", the_target, "sglang")
    with refused(ValueError, "is the head itself", "given as its target"):
        convert(tmp_path / "head", tmp_path / "new", "speculators", target=tmp_path / "head")
    (the_target / "config.json").write_text(json.dumps(ENTRIES | {"vocab_size": 13}))
    with refused(ValueError, "vocabulary of 11 tokens", "has 13"):
        convert(tmp_path / "head", tmp_path / "new", "speculators", target=the_target)
    (the_target / "config.json").write_text(json.dumps(ENTRIES | {"num_hidden_layers": 1}))
    with refused(ValueError, "reads layers [0, 1, 2]", "this one has 1"):
        convert(tmp_path / "head", tmp_path / "new", "sglang", target=the_target)
    (the_target / "config.json").write_text("{}")
    with refused(ValueError, str(the_target), "has no vocab_size"):
        convert(tmp_path / "head", tmp_path / "new", "sglang", target=the_target)
    save_head(head3(norm_output=True), tmp_path / "normed", format="sglang")
    with refused(ValueError, "norm_output", "sglang or speculators"):
        convert(tmp_path / "normed", tmp_path / "new", "safeailab")
    assert not (tmp_path / "new").exists()
