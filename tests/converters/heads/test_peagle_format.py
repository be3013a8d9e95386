"""P-EAGLE heads and DeepSpec's EAGLE-3 heads in and out: names and configs as their authors write them."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import eagle_jax
from eagle_jax.configs.heads import MaskConfig
from eagle_jax.converters import convert, describe, load_head, save_head, save_target
from eagle_jax.inspection.plan import plan
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY, synthetic_pair
from tests.converters.folders import assert_same, refused, write

TARGET, _ = synthetic_pair()
VOCAB, WIDTH, MLP, DRAFTED, TAPS = TINY.vocab_size, TINY.hidden_size, 40, 20, (0, 1, 2)


def shapes(layers: int, taps: int, drafted: int = DRAFTED) -> dict[str, tuple[int, ...]]:
    """What is in a file of numbered layers, of which the first reads two vectors."""
    named: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCAB, WIDTH),
        "fc.weight": (WIDTH, taps * WIDTH),
        "norm.weight": (WIDTH,),
        "lm_head.weight": (drafted, WIDTH),
        "layers.0.hidden_norm.weight": (WIDTH,),
    }
    for i in range(layers):
        entering, key = WIDTH * (2 if i == 0 else 1), f"layers.{i}"
        named |= {f"{key}.self_attn.{x}_proj.weight": (rows, entering) for x, rows in (("q", 32), ("k", 16), ("v", 16))}
        named |= {f"{key}.{x}_layernorm.weight": (WIDTH,) for x in ("input", "post_attention")}
        named |= {f"{key}.mlp.{x}_proj.weight": (MLP, WIDTH) for x in ("gate", "up")}
        named |= {f"{key}.mlp.down_proj.weight": (WIDTH, MLP), f"{key}.self_attn.o_proj.weight": (WIDTH, 32)}
    return named


def drawn(named: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape, np.float32) / 4 for name, shape in named.items()}


LAYER = {
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "hidden_act": "silu",
}
SPECULATORS: dict[str, Any] = {
    "architectures": ["PEagleDraftModel"],
    "draft_vocab_size": DRAFTED,
    "eagle_aux_hidden_state_layer_ids": list(TAPS),
    "embed_requires_grad": True,
    "mask_token_id": 60,
    "norm_before_residual": False,
    "speculators_config": {
        "algorithm": "peagle",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "owner/model"},
    },
    "speculators_model_type": "peagle",
    "speculators_version": "0.5.0",
    "transformer_layer_config": LAYER
    | {"model_type": "llama", "num_hidden_layers": 2, "rope_parameters": {"rope_theta": 10000.0}},
}
FLAT: dict[str, Any] = LAYER | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "rope_theta": 10000.0,
    "draft_vocab_size": DRAFTED,
    "parallel_drafting": True,
    "ptd_token_id": 60,
    "num_depths": 5,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in TAPS]},
}
DEEPSPEC: dict[str, Any] = LAYER | {
    "architectures": ["Qwen3Eagle3Model"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "draft_num_hidden_layers": 1,
    "eos_token_id": 2,
    "layer_types": ["full_attention"],
    "max_window_layers": 36,
    "num_hidden_layers": 1,
    "num_target_layers": 5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "sliding_window": None,
    "step_loss_decay": 0.8,
    "target_layer_ids": [0, 1, 2, 3, 4],
    "target_model_name_or_path": "owner/model",
    "tie_word_embeddings": False,
    "transformers_version": "5.0.0",
    "ttt_length": 7,
    "use_sliding_window": False,
}


def peagle_values() -> dict[str, np.ndarray]:
    ids = np.sort(np.random.default_rng(1).permutation(VOCAB)[:DRAFTED])
    mapping = {"d2t": ids - np.arange(DRAFTED), "t2d": np.isin(np.arange(VOCAB), ids)}
    return drawn(shapes(2, 3) | {"mask_hidden": (1, 1, 3 * WIDTH)}) | mapping


def test_speculators_in_and_out(tmp_path: pathlib.Path):
    """Every tensor comes back, in its shape, and the config says the same."""
    (tmp_path / "published").mkdir()
    values = peagle_values()
    head = load_head(write(tmp_path / "published", values, SPECULATORS), TARGET)
    assert isinstance(head, Head3) and head.config.mask == MaskConfig(token_id=60, num_drafted=5)
    assert head.config.layers.num_hidden_layers == 2 and head.config.own_embedding and head.taps == TAPS
    np.testing.assert_array_equal(head.params["mask_hidden"], values["mask_hidden"].ravel())
    save_head(head, tmp_path / "again", target=TARGET, target_name="owner/model")
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert set(written) == set(values)
    for name, value in values.items():
        np.testing.assert_array_equal(written[name], value, strict=True)
    stated = json.loads((tmp_path / "again" / "config.json").read_text())
    assert stated["speculators_model_type"] == stated["speculators_config"]["algorithm"] == "peagle"
    assert stated["mask_token_id"] == 60 and stated["architectures"] == ["PEagleSpeculator"]
    assert_same(load_head(tmp_path / "again", TARGET), head)
    told = describe(tmp_path / "again")
    assert (told.kind, told.format, told.problem) == ("P-EAGLE head", "speculators", None)


@pytest.mark.parametrize(
    "name", ["mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id", "dflash_config"]
)
def test_a_flat_config_in_and_converted(tmp_path: pathlib.Path, name: str):
    """EAGLE-3's with parallel_drafting, the mask token under any of its names; NeMo's parameter has two axes."""
    (tmp_path / "flat").mkdir()
    values = peagle_values()
    expected = load_head(write(tmp_path / "flat", values, SPECULATORS), TARGET)
    stated = {key: value for key, value in FLAT.items() if key != "ptd_token_id"}
    stated[name] = {"mask_token_id": 60} if name == "dflash_config" else 60
    values["mask_hidden"] = values["mask_hidden"][0]
    assert_same(load_head(write(tmp_path / "flat", values, stated), TARGET), expected)
    if name == "pard_token":
        convert(tmp_path / "flat", tmp_path / "converted", "speculators", target=written_target(tmp_path / "target"))
        assert load_file(tmp_path / "converted" / "model.safetensors")["mask_hidden"].shape == (1, 1, 3 * WIDTH)
        assert_same(load_head(tmp_path / "converted", TARGET), expected)


def written_target(folder: pathlib.Path) -> pathlib.Path:
    save_target(TARGET, folder)
    return folder


def test_how_many_tokens_a_pass_drafts(tmp_path: pathlib.Path):
    write(tmp_path, peagle_values(), {key: value for key, value in FLAT.items() if key != "num_depths"})
    for changes, count in (({}, 8), ({"num_depths": 3}, 3)):
        assert load_head(tmp_path, TARGET, changes=changes).config.mask.num_drafted == count


BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no mask token": ({"ptd_token_id": None}, ("no mask token", "ptd_token_id")),
    "two mask tokens": ({"pard_token": 3}, ("different mask tokens", "60", "3")),
    "no token of the target's": ({"ptd_token_id": 61}, ("mask_token_id=61", "61 tokens")),
    "no number": ({"ptd_token_id": "60"}, ("ptd_token_id='60'",)),
    "not parallel": ({"parallel_drafting": False}, ("parallel_drafting=False", "mask_hidden")),
    "a P-EAGLE class that is not": (
        {"parallel_drafting": False, "architectures": ["PEagleDraftModel"]},
        ("parallel_drafting=False", "P-EAGLE"),
    ),
    "no tokens": ({"num_depths": 0}, ("num_drafted=0",)),
    "another method's settings": ({"dflash_config": {"target_layer_ids": [1]}}, ("dflash_config", "mask_token_id")),
    "another number of taps": ({"num_aux_hidden_states": 5}, ("num_aux_hidden_states=5", "3 target layers")),
}


@pytest.mark.parametrize("case", BAD)
def test_configs_that_cannot_be(tmp_path: pathlib.Path, case: str):
    changes, words = BAD[case]
    with refused(ValueError, *words):
        load_head(write(tmp_path, peagle_values(), FLAT | changes), TARGET)


@pytest.mark.parametrize("config", [SPECULATORS, FLAT], ids=["speculators", "flat"])
def test_files_without_the_parameter_or_with_another(tmp_path: pathlib.Path, config: dict[str, Any]):
    values = peagle_values()
    hidden = values.pop("mask_hidden")
    with refused(ValueError, "tensor mask_hidden is missing", "P-EAGLE"):
        load_head(write(tmp_path, values, config), TARGET)
    for shape in ((3, WIDTH), (1, 1, 1, 3 * WIDTH), (2 * WIDTH,)):
        other = np.resize(hidden, shape)
        with refused(ValueError, "mask_hidden", str(list(shape)), f"expected [1, 1, {3 * WIDTH}]"):
            load_head(write(tmp_path, values | {"mask_hidden": other}, config), TARGET)


@pytest.mark.parametrize("format", ["safeailab", "sglang"])
def test_formats_that_do_not_know_it(tmp_path: pathlib.Path, format: str):
    head = load_head(write(tmp_path, peagle_values(), FLAT), TARGET)
    with refused(ValueError, "2 decoder layers", format):
        save_head(head, tmp_path / "out", format=format)
    one = {name: value for name, value in peagle_values().items() if not name.startswith("layers.1.")}
    head = load_head(write(tmp_path, one, FLAT), TARGET)
    with refused(ValueError, f"the {format} format know no mask", "speculators"):
        save_head(head, tmp_path / "out", format=format)


def test_through_the_front_door(tmp_path: pathlib.Path):
    """Found by name, its text that of plain decoding, rounded too; other methods are refused with its own name."""
    (tmp_path / "head").mkdir()
    write(tmp_path / "head", peagle_values(), SPECULATORS)
    model = eagle_jax.load(written_target(tmp_path / "target"), tmp_path / "head", head_config={"num_depths": 3})
    ask = {"max_new_tokens": 12, "temperature": 0.7, "seed": 3}
    plain = eagle_jax.generate(model, [3, 1, 4], drafter="none", **ask)
    assert eagle_jax.generate(model, [3, 1, 4], drafter="peagle", tree=(6, 1, 2), **ask).token_ids == plain.token_ids
    rounded = eagle_jax.load(tmp_path / "target", tmp_path / "head", quantize="draft:int8")
    assert eagle_jax.generate(rounded, [3, 1, 4], **ask).token_ids == plain.token_ids
    assert plan(tmp_path / "target", tmp_path / "head", nodes=4).head > 0
    with pytest.raises(ValueError, match="drafts 3 tokens in a pass"):
        eagle_jax.generate(model, [3, 1, 4], max_new_tokens=8, drafter="peagle", tree=(6, 4, 1))
    for drafter in ("eagle", "eagle3", "hybrid"):
        with pytest.raises(ValueError, match='and the model has a P-EAGLE head, which drafts with drafter="peagle"'):
            eagle_jax.generate(model, [3, 1, 4], max_new_tokens=8, drafter=drafter)


def deep_target() -> LM:
    """One with as many layers as DeepSpec's heads read."""
    return LM.init(dataclasses.replace(TINY, num_hidden_layers=5), jax.random.key(5))


def deepspec_values() -> dict[str, np.ndarray]:
    norms = {f"layers.0.self_attn.{x}_norm.weight": (8,) for x in "qk"}
    return drawn(shapes(1, 5, drafted=VOCAB) | norms)


def test_deepspec_in_and_out(tmp_path: pathlib.Path):
    """Five taps, named by the layers that they leave, norms of heads, the whole vocabulary; speculators can say it."""
    (tmp_path / "published").mkdir()
    values, target = deepspec_values(), deep_target()
    head = load_head(write(tmp_path / "published", values, DEEPSPEC), target)
    assert isinstance(head, Head3) and head.taps == (1, 2, 3, 4, 5) and head.vocabulary is None
    assert head.config.layers.qk_norm and head.config.own_embedding and head.config.mask is None
    np.testing.assert_array_equal(
        head.params["layers_0"]["self_attn"]["q_norm"]["scale"], values["layers.0.self_attn.q_norm.weight"]
    )
    save_head(head, tmp_path / "again", target=target, target_name="owner/model")
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert set(written) == set(values)
    for name, value in values.items():
        np.testing.assert_array_equal(written[name], value, strict=True)
    assert_same(load_head(tmp_path / "again", target), head)
    with refused(ValueError, "safeailab format know no qk_norm", "speculators"):
        save_head(head, tmp_path / "flat", format="safeailab")


def test_deepspecs_embedding_is_dropped_where_it_is_the_targets(tmp_path: pathlib.Path):
    """It is a copy that was frozen in training."""
    target = deep_target()
    values = deepspec_values() | {"embed_tokens.weight": np.asarray(target.table)}
    head = load_head(write(tmp_path, values, DEEPSPEC), target)
    assert not head.config.own_embedding and "embed_tokens" not in head.params


def test_deepspec_taps_that_cannot_be(tmp_path: pathlib.Path):
    cases = (([0, 1, 2, 3, 3], ("target_layer_ids", "ascending")), ([0, 1, 2], ("160 columns", "3 times 32")))
    for ids, words in cases:
        with refused(ValueError, *words):
            load_head(write(tmp_path, deepspec_values(), DEEPSPEC | {"target_layer_ids": ids}), deep_target())
    stated = DEEPSPEC | {"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3, 4]}
    with refused(ValueError, "layers whose inputs are tapped", "target_layer_ids lists", "one less"):
        load_head(write(tmp_path, deepspec_values(), stated), deep_target())
    nested = DEEPSPEC | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3, 5]}}
    with refused(ValueError, "eagle_config lists [0, 1, 2, 3, 5]", "target_layer_ids lists", "expected equal lists"):
        load_head(write(tmp_path, deepspec_values(), nested), deep_target())
