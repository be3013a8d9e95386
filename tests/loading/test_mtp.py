"""A checkpoint's own layer for multi-token prediction as its draft head, and the text part of a multimodal folder."""

import json
import pathlib

import jax
import numpy as np
import pytest
from family_cases import FAMILIES
from parity_cases import texts
from safetensors.numpy import load_file, save_file
from test_family_parity import TOLERANCE, write

from eagle_jax.api import describe, generate, load, quantize, with_head
from eagle_jax.converters import load_target
from eagle_jax.converters.heads.kinds import load_head
from eagle_jax.inspection.plan import plan

NAMES = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "glm4_moe", "deepseek_v3", "glm4_moe_lite")


QWEN = {"fc": "mtp.fc", "e": "mtp.pre_fc_norm_embedding", "h": "mtp.pre_fc_norm_hidden", "norm": "mtp.norm"}


def add_layer(folder: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """Adds the tensors, those of the last layer with attention and more, and gives them as `MtpLayer` has them."""
    file, entries = folder / "model.safetensors", FAMILIES[name].entries
    tensors, size, layers = load_file(file), entries["hidden_size"], entries["num_hidden_layers"]
    last = max(i for i in range(layers) if any(f"model.layers.{i}.self_attn" in key for key in tensors))
    names, prefix = QWEN, "mtp.layers.0."
    if name not in NAMES[:3]:
        prefix = f"model.layers.{layers}."
        names = {"fc": "eh_proj", "e": "enorm", "h": "hnorm", "norm": "shared_head.norm"}
        names = {part: prefix + own for part, own in names.items()}
    begin, rng = f"model.layers.{last}.", np.random.default_rng(3)
    inner = {key.removeprefix(begin): value for key, value in tensors.items() if key.startswith(begin)}
    more = {part: 1 + 0.2 * rng.standard_normal(size).astype(np.float32) for part in ("e", "h", "norm")}
    more["fc"] = (rng.standard_normal((size, 2 * size)) * size**-0.5).astype(np.float32)
    own = {prefix + key: value for key, value in inner.items()}
    own |= {f"{names[part]}.weight": value for part, value in more.items()}
    save_file(tensors | own, file)
    theirs = {"fc": "eh_proj", "e": "enorm", "h": "hnorm", "norm": "post_norm"}
    return {f"mtp_block.{key}": value for key, value in inner.items()} | {
        f"{theirs[part]}.weight": value for part, value in more.items()
    }


@pytest.mark.proof
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
@pytest.mark.parametrize("name", ["qwen3_5_text", "glm4_moe", "deepseek_v3"])
def test_outputs_are_transformers(name: str, tmp_path: pathlib.Path):
    pytest.importorskip("torch")
    import mtp_torch

    write(tmp_path, name)
    own = add_layer(tmp_path, name)
    target = load_target(tmp_path)
    head = load_head(tmp_path, target)
    size, entries = target.config.hidden_size, dict(FAMILIES[name].entries)
    embeddings, features = np.random.default_rng(0).standard_normal((2, 2, 11, size)).astype(np.float32)
    got = jax.jit(lambda head, e, f: head.causal(e, f))(head, embeddings, features)
    expected = mtp_torch.outputs(entries, own, embeddings, features)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE * np.abs(expected).max())
    order = np.concatenate([own["eh_proj.weight"][:, size:], own["eh_proj.weight"][:, :size]], axis=1)
    other = mtp_torch.outputs(entries, own | {"eh_proj.weight": order}, embeddings, features)
    assert np.abs(other - expected).max() > 0.1, "negative control: the order of embedding and feature matters"


def test_what_is_refused(tmp_path: pathlib.Path):
    write(tmp_path, "qwen3_5_text")
    with pytest.raises(ValueError, match="has no layer for multi-token prediction"):
        load(tmp_path, "mtp")
    with pytest.raises(ValueError, match="has no layer for multi-token prediction"):
        plan(tmp_path, "mtp")
    with pytest.raises(ValueError, match="has no layer for multi-token prediction"):
        load("toy", "mtp")
    with pytest.raises(ValueError, match="load the target with it"):
        with_head(load(tmp_path), "mtp")
    add_layer(tmp_path, "qwen3_5_text")
    with pytest.raises(ValueError, match="head_config has rope_theta; of a target's own layer"):
        load(tmp_path, "mtp", head_config={"rope_theta": 1.0})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"mtp.layers.1.input_layernorm.weight": tensors["mtp.norm.weight"]}, file)
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
    assert load(tmp_path, target_config={"rope_theta": 123.0}).target.config.rope.theta == 123.0
    with pytest.raises(ValueError, match="nonsense changes nothing"):
        load(tmp_path, target_config={"nonsense": 1})
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": text | {"model_type": "llama"}}))
    with pytest.raises(ValueError, match="expected the config of a qwen3_5_text"):
        load_target(tmp_path)


def test_a_plan_counts_the_layer(tmp_path: pathlib.Path):
    write(tmp_path, "qwen3_5_text")
    add_layer(tmp_path, "qwen3_5_text")
    alone, with_layer = plan(tmp_path), plan(tmp_path, "mtp")
    assert with_layer.head > 0 and with_layer.cache > alone.cache and with_layer.target == alone.target


@pytest.mark.proof
def test_on_several_devices(tmp_path: pathlib.Path):
    """More devices along `model` than kv heads: keys and values are repeated, in target and layer."""
    write(tmp_path, "qwen3_5_moe_text")
    add_layer(tmp_path, "qwen3_5_moe_text")
    prompt = texts(FAMILIES["qwen3_5_moe_text"])[0, :9].tolist()
    how = dict(max_new_tokens=12, drafter="eagle", tree=(4, 3, 1))
    alone, spread = (load(tmp_path, "mtp", mesh=mesh) for mesh in (None, "model:4"))
    assert generate(spread, [prompt], **how)[0].token_ids == generate(alone, [prompt], **how)[0].token_ids
    experts = spread.head.params["layers_0"]["mlp"]["experts"]["gate"]
    assert experts.sharding.shard_shape(experts.shape)[1] == experts.shape[1] // 4


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["qwen3_5_text", "deepseek_v3"])
def test_a_quantized_folder_says_that_the_layer_stays_in_floats(name: str, tmp_path: pathlib.Path):
    """Loaders of compressed-tensors expect packed weights of every linear map that `ignore` does not name."""
    (source := tmp_path / "source").mkdir()
    write(source, name)
    before = load_file(source / "model.safetensors")
    add_layer(source, name)
    quantize(source, tmp_path / "int8", "int8")
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    matrices = {key for key, value in tensors.items() if key not in before and key.endswith(".weight")}
    matrices = {key.removesuffix(".weight") for key in matrices if tensors[key].ndim > 1}
    ignored = json.loads((tmp_path / "int8" / "config.json").read_text())["quantization_config"]["ignore"]
    assert matrices and matrices <= set(ignored) and len(ignored) == len(set(ignored))
    assert not any(f"{module}.weight_packed" in tensors for module in ignored)
    prompt = texts(FAMILIES[name])[0, :9].tolist()
    model = load(tmp_path / "int8", "mtp", target_config={"max_position_embeddings": 128})
    drafted, plain = (generate(model, [prompt], max_new_tokens=12, drafter=drafter)[0] for drafter in ("eagle", "none"))
    assert drafted.token_ids == plain.token_ids


def test_files_of_the_layer_alone_are_no_model(tmp_path: pathlib.Path):
    write(tmp_path, "qwen3_5_text")
    add_layer(tmp_path, "qwen3_5_text")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({key: value for key, value in tensors.items() if key.startswith("mtp.")}, tmp_path / "model.safetensors")
    assert describe(tmp_path).kind == "unknown"
    with pytest.raises(ValueError, match="lacks"):
        load(tmp_path)


def test_the_correction_of_a_router_is_never_rounded(tmp_path: pathlib.Path):
    write(tmp_path, "deepseek_v3")
    stored = load_file(tmp_path / "model.safetensors")["model.layers.1.mlp.gate.e_score_correction_bias"]
    read = load_target(tmp_path, dtype="bfloat16").params["layers_1"]["mlp"]["correction_bias"]
    np.testing.assert_array_equal(read, stored)
