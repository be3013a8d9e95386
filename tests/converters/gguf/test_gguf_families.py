"""GGUF files of further families: the model that the folder has, and a folder made of them."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from eagle_jax.converters import convert_gguf, load_target, save_target
from eagle_jax.converters.heads.kinds import load_head

pytest.importorskip("gguf")
from tests.converters.gguf.gguf_families import FAMILIES, model_of, parameters, rope_tensors, write  # noqa: E402


@pytest.mark.matrix
@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_model_is_that_of_the_folder(tmp_path, architecture):
    model = model_of(architecture)
    read = load_target(write(tmp_path / "m.gguf", model, architecture, FAMILIES[architecture][2]))
    assert read.config == model.config
    jax.tree.map(np.testing.assert_array_equal, read.params, model.params)


def test_widths_that_do_not_agree_are_refused(tmp_path):
    metadata = FAMILIES["minimax-m2"][2] | {"expert_feed_forward_length": 95}
    with pytest.raises(ValueError, match=r"minimax-m2\.expert_feed_forward_length 95 and 96 under another name"):
        load_target(write(tmp_path / "m.gguf", model_of("minimax-m2"), "minimax-m2", metadata))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_is_not_known_is_refused_by_name(tmp_path, architecture):
    model, metadata = model_of(architecture), FAMILIES[architecture][2]
    path = write(tmp_path / "m.gguf", model, architecture, metadata | {"attention.slope": 2.0})
    with pytest.raises(ValueError, match=rf"{architecture.split()[0]}\.attention\.slope 2\.0, which is not known"):
        load_target(path)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("gemma4", {"attention.key_length": 30}, "expected these to agree"),
        ("gemma4", {"feed_forward_length": [96, 192, 192, 192]}, r"expected \[96, 96, 192, 192\]"),
        ("gemma4", {"attention.sliding_window_pattern": [True, False]}, "expected one for each of 4 layers"),
        ("mistral3", {"rope.scaling.type": "linear", "rope.scaling.factor": "4"}, "factor '4'; expected a number"),
        ("gemma4", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "in gemma4; expected no rope scaling"),
        ("mistral3", {"rope.scaling.type": "none"}, "scaling of kind 'none', which does not have them"),
        ("glm4moe", {"expert_gating_func": 1}, "glm4moe.expert_gating_func 1, which is not known"),
    ],
)
def test_entries_that_do_not_fit_are_refused(tmp_path, case, changes, message):
    with pytest.raises(ValueError, match=message):
        load_target(write(tmp_path / "m.gguf", model_of(case), case, FAMILIES[case][2] | changes))


@pytest.mark.parametrize(
    ("case", "name", "factors", "message"),
    [
        ("gemma4", "rope_freqs.weight", [1.0] * 4 + [2.0] * 12, "other than 1 and then"),
        ("gemma4", "rope_freqs.weight", None, r"no tensor rope_freqs\.weight"),
        ("phi3 with LongRoPE", "rope_factors_short.weight", None, r"no tensor rope_factors_short\.weight"),
        ("phi3 with LongRoPE", "rope_factors_short.weight", [1.0], "short_factor of 1 numbers; expected 4"),
        ("mistral3", "rope_factors_long.weight", [1.0] * 8, r"a tensor rope_factors_long\.weight, which is not known"),
        ("mistral3", "rope_freqs.weight", [1.0] * 8, "scaling of kind 'yarn'; expected one of them"),
    ],
)
def test_factors_that_do_not_fit_are_refused(tmp_path, monkeypatch, case, name, factors, message):
    model = model_of(case)
    tensors = rope_tensors(model.config) | {name: factors}
    held = {key: value for key, value in tensors.items() if value is not None}
    monkeypatch.setattr("tests.converters.gguf.gguf_families.rope_tensors", lambda config: held)
    with pytest.raises(ValueError, match=message):
        load_target(write(tmp_path / "m.gguf", model, case, FAMILIES[case][2]))


@pytest.mark.matrix
@pytest.mark.parametrize("case", FAMILIES)
def test_a_folder_is_made_of_it(tmp_path, case):
    """transformers' names: matrices that its files hold in one tensor are joined again."""
    model = model_of(case)
    convert_gguf(write(tmp_path / "m.gguf", model, case, FAMILIES[case][2]), tmp_path / "made", dtype="float32")
    save_target(model, tmp_path / "saved")
    made, saved = (load_file(tmp_path / name / "model.safetensors") for name in ("made", "saved"))
    assert made.keys() == saved.keys()
    assert load_target(tmp_path / "made").config == model.config
    jax.tree.map(np.testing.assert_array_equal, made, saved)


def test_a_layer_for_multi_token_prediction(tmp_path):
    """It comes after the model's own, which `block_count` says as well."""
    model, rng = model_of("glm4moe"), np.random.default_rng(0)
    layer = {name.replace(".2.", ".3."): one + 1 for name, one in parameters(model).items() if ".layers.2." in name}
    shapes = {"eh_proj": (64, 128), "enorm": (64,), "hnorm": (64,), "shared_head.norm": (64,)}
    layer |= {f"model.layers.3.{name}.weight": rng.random(shape, np.float32) for name, shape in shapes.items()}
    metadata = FAMILIES["glm4moe"][2] | {"block_count": 4, "nextn_predict_layers": 1}
    path = write(tmp_path / "m.gguf", model, "glm4moe", metadata, layer)
    assert load_target(path).config == model.config
    head = load_head(path, model)
    np.testing.assert_array_equal(head.params["fc"]["weight"], layer["model.layers.3.eh_proj.weight"])
    np.testing.assert_array_equal(head.params["norm"]["scale"], layer["model.layers.3.shared_head.norm.weight"])
    down = head.params["layers_0"]["mlp"]["experts"]["down"]
    np.testing.assert_array_equal(down, layer["model.layers.3.mlp.experts.down_proj.weight"])
    convert_gguf(path, tmp_path / "made", dtype="float32")
    jax.tree.map(np.testing.assert_array_equal, load_head(tmp_path / "made", model).params, head.params)
