"""Every format: what is written is read back bit for bit, and each kind of head goes only where it is understood."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from folders import assert_same, entries, filled, head, head3, refused, target, tensors, write
from safetensors.numpy import load_file

from eagle_jax.configs.heads import EagleConfig
from eagle_jax.converters import load_head, save_head
from eagle_jax.converters.heads.eagle_formats import FORMATS
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle import Head

LAYER = {"num_key_value_heads": 1, "head_dim": 6}


def trimmed() -> Head:
    """As `Head.trimmed` makes them."""
    made = EagleConfig(layers=head().config.layers, fc_bias=True, draft_vocab_size=3)
    rows = {"lm_head": {"weight": target().params["lm_head"]["weight"][:3]}}
    return Head(params=head().params | rows, config=made, vocabulary=jnp.asarray([0, 4, 10], jnp.int32))


def without_fc_bias() -> Head:
    params = head().params | {"fc": {"weight": head().params["fc"]["weight"]}}
    return Head(params=params, config=dataclasses.replace(head().config, fc_bias=False))


def qwen2() -> Head:
    layers = dataclasses.replace(head().config.layers, attention_bias=False, qkv_bias=True)
    return filled(EagleConfig(layers=layers, fc_bias=True))


def test_an_eagle3_head_may_borrow_the_targets_output_matrix(tmp_path: pathlib.Path):
    """As NVIDIA's heads with `has_lm_head` false, and vLLM's."""
    made = head3(draft_vocab_size=11)
    bare = {name: value for name, value in tensors(made).items() if name != "lm_head.weight"}
    for changes in ({}, {"eagle_config": entries(made).get("eagle_config", {}) | {"has_lm_head": False}}):
        loaded = load_head(write(tmp_path, bare, entries(made) | changes), target())
        own = made.params | {"lm_head": {"weight": target().params["lm_head"]["weight"]}}
        assert_same(loaded, dataclasses.replace(made, params=own))


HEADS: dict[str, tuple[DraftHead, tuple[str, ...]]] = {
    "eagle1": (head(), tuple(FORMATS)),
    "eagle1 without bias": (without_fc_bias(), tuple(FORMATS)),
    "eagle1 with its own head size": (head(num_key_value_heads=1, head_dim=6), tuple(FORMATS)),
    "eagle1 with biases": (head(attention_bias=True), ("speculators",)),
    "eagle1 for Qwen2": (qwen2(), ("safeailab", "sglang")),
    "eagle1 trimmed": (trimmed(), ("safeailab",)),
    "eagle3": (head3(), tuple(FORMATS)),
    "eagle3 with its own head size": (head3(LAYER), tuple(FORMATS)),
    "eagle3 of the whole vocabulary": (head3(draft_vocab_size=11), tuple(FORMATS)),
    "eagle3 with its own embedding": (head3(own_embedding=True), tuple(FORMATS)),
    "eagle3 of another width": (
        head3({"hidden_size": 4}, own_embedding=True, taps=(0, 1)),
        tuple(FORMATS),
    ),
    "eagle3.1": (head3(fc_norm=True, norm_output=True), ("sglang", "speculators")),
    "norm before residual": (head3(norm_before_residual=True), ("speculators",)),
    "norm before fc": (head3(norm_before_fc=True), ("speculators",)),
    "biases": (head3({"attention_bias": True, "mlp_bias": True}), ("speculators",)),
    "q and k norms": (head3({"qk_norm": True}), ("speculators",)),
    "two layers": (head3({"num_hidden_layers": 2}), ("speculators",)),
    "window": (head3({"sliding_window": 4}), tuple(FORMATS)),
}
WRITABLE = [(name, format) for name, (_, able) in HEADS.items() for format in able]
OTHERS = [(name, format) for name, (_, able) in HEADS.items() for format in FORMATS if format not in able]


@pytest.mark.parametrize(("name", "format"), WRITABLE)
def test_round_trip(tmp_path: pathlib.Path, name: str, format: str):
    made = HEADS[name][0]
    save_head(made, tmp_path, format=format)
    assert_same(load_head(tmp_path, target()), made)
    on_disk = load_file(tmp_path / "model.safetensors")
    assert set(on_disk) == set(tensors(made, format))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["eagle1", "eagle3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tensors_are_the_same_bytes_in_every_dtype(tmp_path: pathlib.Path, name: str, format: str, dtype: str):
    made = HEADS[name][0]
    made = dataclasses.replace(made, params=jax.tree.map(lambda leaf: leaf.astype(dtype), made.params))
    save_head(made, tmp_path / "first", format=format)
    save_head(load_head(tmp_path / "first", target()), tmp_path / "second", format=format)
    first, second = ((tmp_path / part / "model.safetensors").read_bytes() for part in ("first", "second"))
    assert first == second
    assert json.loads((tmp_path / "first" / "config.json").read_text())["torch_dtype"] == dtype


@pytest.mark.parametrize(("name", "format"), OTHERS)
def test_a_head_that_a_formats_readers_would_misread_is_not_written(tmp_path: pathlib.Path, name: str, format: str):
    with refused(ValueError, format):
        save_head(HEADS[name][0], tmp_path / "new", format=format)
    assert not (tmp_path / "new").exists()


def test_an_unknown_format(tmp_path: pathlib.Path):
    with refused(ValueError, "'gguf'", "'safeailab', 'sglang', 'speculators'"):
        save_head(head(), tmp_path / "new", format="gguf")


def test_names_on_disk():
    """As published: the tables of the reference implementations, written out."""
    layer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    layer += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"]
    eagle1 = {"fc.weight", "fc.bias", *(f"layers.0.{part}.weight" for part in layer)}
    assert set(tensors(head())) == set(tensors(head(), "sglang")) == eagle1
    fused = {"fusion_fc.weight", "fusion_fc.bias", *(f"transformer.{part}.weight" for part in layer)}
    assert set(tensors(head(), "speculators")) == fused
    around = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    own = [*layer, "hidden_norm", "input_layernorm"]
    assert set(tensors(head3())) == around | {f"midlayer.{part}.weight" for part in own}
    assert set(tensors(head3(), "speculators")) == around | {f"layers.0.{part}.weight" for part in own}
    normed = set(tensors(head3(fc_norm=True), "sglang")) - set(tensors(head3()))
    assert normed == {f"fc_norm.{i}.weight" for i in range(3)}


def test_the_mapping_holds_offsets(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path)
    on_disk = load_file(tmp_path / "model.safetensors")
    assert on_disk["d2t"].dtype == np.int64 and on_disk["d2t"].tolist() == [1, 2, 3, 4, 5]
    assert on_disk["t2d"].dtype == bool and np.flatnonzero(on_disk["t2d"]).tolist() == [1, 3, 5, 7, 9]
    assert load_head(tmp_path, target()).vocabulary.tolist() == [1, 3, 5, 7, 9]


def test_taps_are_counted_as_each_format_does():
    assert entries(head3())["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}
    assert entries(head3(), "speculators")["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]


def test_configs_that_readers_expect():
    assert entries(head())["architectures"] == entries(head3())["architectures"] == ["LlamaForCausalLM"]
    assert entries(head(), "sglang")["architectures"] == ["LlamaForCausalLMEagle"]
    assert entries(head3(), "sglang")["architectures"] == ["LlamaForCausalLMEagle3"]
    nested = entries(head3(), "speculators")
    assert (nested["architectures"], nested["speculators_model_type"]) == (["Eagle3Speculator"], "eagle3")
    assert nested["speculators_config"]["default_proposal_method"] == "greedy"
    assert nested["transformer_layer_config"]["hidden_size"] == 8
    assert entries(head(), "speculators")["fusion_bias"]


def test_sglang_takes_a_bias_for_one_on_q_k_and_v():
    assert "bias" not in entries(head(), "sglang") and entries(head())["bias"] is True
    assert entries(without_fc_bias(), "sglang")["bias"] is False
    assert entries(qwen2(), "sglang")["architectures"] == ["Qwen2ForCausalLMEagle"]


def test_an_older_name_of_a_flag(tmp_path: pathlib.Path):
    normed = head3(fc_norm=True)
    stated = entries(normed, "sglang")
    stated["use_aux_norm"] = stated.pop("fc_norm")
    assert_same(load_head(write(tmp_path, tensors(normed, "sglang"), stated), target()), normed)


@pytest.mark.parametrize("name", HEADS)
def test_without_a_format_it_is_the_first_that_can_say_it(tmp_path: pathlib.Path, name: str):
    made, able = HEADS[name]
    save_head(made, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == entries(made, able[0])


def test_a_speculators_config_names_the_target(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path, format="speculators", target=target(), target_name="owner/model")
    written = json.loads((tmp_path / "config.json").read_text())
    verifier = written["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "owner/model", "architectures": ["LlamaForCausalLM"]}


def test_readers_may_leave_out_what_can_be_known(tmp_path: pathlib.Path):
    """No t2d, no embedding, no draft_vocab_size; sizes in the config or not."""
    values = {name: value for name, value in tensors(head3()).items() if name != "t2d"}
    stated = {name: value for name, value in entries(head3()).items() if name != "draft_vocab_size"}
    assert_same(load_head(write(tmp_path, values, stated), target()), head3())
    bare = {"vocab_size": 11, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 32}
    loaded = load_head(write(tmp_path, values, bare | {"eagle_config": stated["eagle_config"]}), target())
    assert_same(loaded, head3())


def test_an_embedding_like_the_targets_is_dropped(tmp_path: pathlib.Path):
    table = np.asarray(target().params["embed_tokens"]["embedding"])
    for stored in (table, table.astype(np.float16)):
        values = tensors(head3()) | {"embed_tokens.weight": stored}
        assert_same(load_head(write(tmp_path, values, entries(head3())), target()), head3())


def test_a_gemma_scales_its_embedding_and_a_head_does_not(tmp_path: pathlib.Path):
    gemma = target(model_type="gemma2", architectures=None, hidden_act="gelu_pytorch_tanh", head_dim=2)
    table = np.asarray(gemma.params["embed_tokens"]["embedding"])
    loaded = load_head(write(tmp_path, tensors(head3()) | {"embed_tokens.weight": table}, entries(head3())), gemma)
    np.testing.assert_array_equal(loaded.embed(gemma, jnp.array([[3]]))[0, 0], table[3])
    assert not np.allclose(gemma.embed(jnp.array([[3]]))[0, 0], table[3])


def test_an_embedding_unlike_the_targets_is_kept(tmp_path: pathlib.Path):
    table = np.asarray(target().params["embed_tokens"]["embedding"]) + 1
    values = tensors(head3()) | {"embed_tokens.weight": table}
    loaded = load_head(write(tmp_path, values, entries(head3())), target())
    assert loaded.config.own_embedding
    np.testing.assert_array_equal(loaded.params["embed_tokens"]["embedding"], table)


@pytest.mark.parametrize(("layers", "taps"), [(32, (2, 16, 29)), (40, (2, 20, 37)), (80, (2, 40, 77)), (7, (2, 3, 4))])
def test_taps_by_default(tmp_path: pathlib.Path, layers: int, taps: tuple[int, ...]):
    stated = {name: value for name, value in entries(head3()).items() if name != "eagle_config"}
    lm = target()
    deep = dataclasses.replace(lm, config=dataclasses.replace(lm.config, num_hidden_layers=layers))
    assert load_head(write(tmp_path, tensors(head3()), stated), deep).taps == taps
    with refused(ValueError, "eagle_aux_hidden_state_layer_ids", "at least 7 layers"):
        load_head(tmp_path, lm)


def test_changes_take_the_place_of_entries(tmp_path: pathlib.Path):
    folder = write(tmp_path, tensors(head3()), entries(head3()))
    scaling = {"rope_type": "linear", "factor": 2.0}
    loaded = load_head(folder, target(), changes={"rope_theta": 7.0, "rope_scaling": scaling, "sliding_window": 5})
    rope = loaded.config.layers.rope
    assert (rope.theta, rope.kind, rope.factor, loaded.config.layers.sliding_window) == (7.0, "linear", 2.0, 5)
    with refused(ValueError, "rope_tetha=7.0", "not known"):
        load_head(folder, target(), changes={"rope_tetha": 7.0})


def test_keys_of_a_head_that_say_nothing_are_passed_over(tmp_path: pathlib.Path, caplog):
    """NeMo's configs hold flags that are off, and the target's number of layers."""
    stated = entries(head3()) | {"parallel_drafting": False, "num_hidden_layers": 36}
    stated["eagle_config"] |= {"eh_proj": {}}
    assert_same(load_head(write(tmp_path, tensors(head3()), stated), target()), head3())
    assert [line.split(": ")[1] for line in caplog.messages] == ["eh_proj"]


def test_rope_base_where_none_is_named(tmp_path: pathlib.Path):
    stated = {name: value for name, value in entries(head3()).items() if not name.startswith("rope")}
    assert load_head(write(tmp_path, tensors(head3()), stated), target()).config.layers.rope.theta == 10000.0


def test_head_size_where_none_is_named(tmp_path: pathlib.Path):
    """Qwen3's heads are wider than the hidden size shared out: 2048 / 32 is 64, and their size is 128."""
    wide = head3({"head_dim": 4})
    stated = {name: value for name, value in entries(wide).items() if name != "head_dim"}
    assert_same(load_head(write(tmp_path, tensors(wide), stated), target()), wide)


def test_a_nested_config_leaves_out_defaults(tmp_path: pathlib.Path):
    """transformers writes only what differs from its classes' own values: 32 heads, an epsilon of 1e-6, ..."""
    many = head3({"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 2, "rms_norm_eps": 1e-6})
    stated = entries(many, "speculators")
    for name in ("num_attention_heads", "rms_norm_eps", "rope_theta", "rope_scaling"):
        del stated["transformer_layer_config"][name]
    assert_same(load_head(write(tmp_path, tensors(many, "speculators"), stated), target()), many)
    stated = entries(head(), "speculators")
    del stated["transformer_layer_config"]["vocab_size"]
    with refused(ValueError, "vocabulary of 32000", "the target has 11"):
        load_head(write(tmp_path, tensors(head(), "speculators"), stated), target())


def test_a_speculators_head_as_vllm_publishes_it(tmp_path: pathlib.Path):
    """With every key that the library writes."""
    extra: dict[str, Any] = {
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "base_model_ep_plan": None,
        "dtype": "float32",
        "embed_requires_grad": False,
        "has_no_defaults_at_init": False,
        "transformers_version": "5.0.0",
        "verifier_norm_eps": 1e-5,
    }
    stated = entries(head3(), "speculators") | extra
    stated["transformer_layer_config"] |= {"initializer_range": 0.02, "use_cache": True, "pretraining_tp": 1}
    assert_same(load_head(write(tmp_path, tensors(head3(), "speculators"), stated), target()), head3())


def test_config_without_layers_of_its_own_kind(tmp_path: pathlib.Path):
    """Layers of one kind may be listed; several kinds in one head may not."""
    stated = entries(head3({"sliding_window": 4}))
    assert stated["layer_types"] == ["sliding_attention"]
    plain = stated | {"layer_types": ["full_attention"]}
    assert load_head(write(tmp_path, tensors(head3()), plain), target()).config.layers.sliding_window is None
    with refused(ValueError, "layer_types=1"):
        load_head(write(tmp_path, tensors(head3()), stated | {"layer_types": 1}), target())
    two = head3({"num_hidden_layers": 2, "sliding_window": 4})
    mixed = entries(two, "speculators")
    mixed["transformer_layer_config"]["layer_types"] = ["sliding_attention", "full_attention"]
    with refused(ValueError, "layer_types", "one type"):
        load_head(write(tmp_path, tensors(two, "speculators"), mixed), target())


def test_layers_may_be_numbered_in_a_flat_config(tmp_path: pathlib.Path):
    assert_same(load_head(write(tmp_path, tensors(head3(), "speculators"), entries(head3())), target()), head3())
