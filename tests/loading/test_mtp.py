"""A checkpoint's own layer for multi-token prediction as its draft head, and the text part of a multimodal folder."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle_jax.api import generate, load
from eagle_jax.converters import load_target
from eagle_jax.converters.heads import load_head
from eagle_jax.tuning.plan import plan

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "models"))
from family_cases import FAMILIES  # noqa: E402
from parity_cases import texts  # noqa: E402
from test_family_parity import TOLERANCE, write  # noqa: E402

NAMES = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")


def add_layer(folder: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """Adds the layer's tensors to a folder that `write` has written: those of the last layer, which has attention."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    size = FAMILIES[name].entries["hidden_size"]
    types = FAMILIES[name].entries.get("layer_types")
    last = types.index("full_attention") if types else FAMILIES[name].entries.get("full_attention_interval", 4) - 1
    own = {
        f"mtp.layers.0.{k.removeprefix(f'model.layers.{last}.')}": v
        for k, v in tensors.items()
        if f".{last}." in k[:16]
    }
    rng = np.random.default_rng(3)
    own |= {f"mtp.{norm}.weight": 0.2 * rng.standard_normal(size).astype(np.float32) for norm in ("norm",)}
    own |= {
        f"mtp.pre_fc_norm_{x}.weight": 0.2 * rng.standard_normal(size).astype(np.float32)
        for x in ("hidden", "embedding")
    }
    own["mtp.fc.weight"] = rng.standard_normal((size, 2 * size)).astype(np.float32) * size**-0.5
    save_file(tensors | own, file)
    return own


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_drafts(name: str, tmp_path: pathlib.Path):
    """With `head="mtp"` and with the target's folder; in a chain and in a tree the text is that of plain decoding."""
    write(tmp_path, name)
    add_layer(tmp_path, name)
    model = load(tmp_path, "mtp", target_config={"max_position_embeddings": 128})
    assert load(tmp_path, tmp_path).head.config == model.head.config
    prompt = texts(FAMILIES[name])[0, :9].tolist()
    expected = generate(model, [prompt], max_new_tokens=24, drafter="none")
    for tree in ((4, 3, 1), (8, 3, 3)):
        drafted = generate(model, [prompt], max_new_tokens=24, drafter="eagle", tree=tree)
        assert drafted[0].token_ids == expected[0].token_ids


@pytest.mark.parity
def test_outputs_are_those_of_transformers_parts(tmp_path: pathlib.Path):
    pytest.importorskip("torch")
    import mtp_torch

    name = "qwen3_5_text"
    write(tmp_path, name)
    own = add_layer(tmp_path, name)
    target = load_target(tmp_path)
    head = load_head(tmp_path, target)
    rng = np.random.default_rng(0)
    embeddings, features = rng.standard_normal((2, 2, 11, target.config.hidden_size)).astype(np.float32)
    got = jax.jit(lambda head, e, f: head.causal(e, f))(head, embeddings, features)
    expected = mtp_torch.outputs(dict(FAMILIES[name].entries), own, embeddings, features)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE * np.abs(expected).max())
    order = np.concatenate([own["mtp.fc.weight"][:, 32:], own["mtp.fc.weight"][:, :32]], axis=1)
    other = mtp_torch.outputs(dict(FAMILIES[name].entries), own | {"mtp.fc.weight": order}, embeddings, features)
    assert np.abs(other - expected).max() > 0.1, "negative control: the order of embedding and feature matters"


def test_what_is_refused(tmp_path: pathlib.Path):
    write(tmp_path, "qwen3_5_text")
    with pytest.raises(ValueError, match="holds a target model; expected a head"):
        load(tmp_path, "mtp")
    own = add_layer(tmp_path, "qwen3_5_text")
    with pytest.raises(ValueError, match="head_config has rope_theta; of a target's own layer"):
        load(tmp_path, "mtp", head_config={"rope_theta": 1.0})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"mtp.layers.1.input_layernorm.weight": own["mtp.norm.weight"]}, file)
    with pytest.raises(ValueError, match="mtp.layers.1.input_layernorm.weight"):
        load(tmp_path, "mtp")
    tensors.pop("mtp.norm.weight")
    save_file(tensors, file)
    with pytest.raises(ValueError, match="lacks 1 tensor that its config describes: mtp.norm.weight"):
        load(tmp_path, "mtp")


def test_the_text_part_of_a_larger_model(tmp_path: pathlib.Path):
    """Names, config and end of text of a folder that reads images, too."""
    name = "qwen3_5_text"
    write(tmp_path, name)
    expected = load_target(tmp_path)
    entries = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    inner = {
        k.replace("model.", "model.language_model.", 1) if k.startswith("model.") else k: v for k, v in tensors.items()
    }
    save_file(
        inner | {"model.visual.patch_embed.proj.weight": np.zeros((3, 3), np.float32)}, tmp_path / "model.safetensors"
    )
    whole = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "vision_config": {"depth": 2},
    }
    text = {key: value for key, value in entries.items() if key != "architectures"} | {"eos_token_id": 7}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": text}))
    got = load_target(tmp_path)
    assert got.config == expected.config
    jax.tree.map(np.testing.assert_array_equal, got.params, expected.params)
    assert load(tmp_path).stop_ids == (7,)
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": text | {"model_type": "llama"}}))
    with pytest.raises(ValueError, match="expected the config of a qwen3_5_text"):
        load_target(tmp_path)


def test_a_plan_counts_the_layer(tmp_path: pathlib.Path):
    write(tmp_path, "qwen3_5_text")
    alone, with_layer = plan(tmp_path), plan(tmp_path, "mtp")
    assert with_layer.head > 0 and with_layer.cache > alone.cache and with_layer.target == alone.target
