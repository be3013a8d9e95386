"""DFlash heads in folders: there and back, as published, and what is refused instead of guessed."""

import dataclasses
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax.configs.target import Rope
from eagle_jax.converters import convert, describe, load_head, load_target, names, save_head, save_target
from eagle_jax.converters.heads import dflash, dflash_config
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.inspection.plan import plan
from eagle_jax.models.dflash import DFlash
from tests.converters.folders import assert_same, refused, target, write
from tests.converters.heads.dflash_heads import LAYERS, PLAIN, WINDOWED, assert_same_files, filled, on_disk

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal_layers": (0, 1, 2)},
    "windows": {"layers": dataclasses.replace(LAYERS, sliding_window=5)},
    "some windows, causal": {"layers": WINDOWED, "causal_layers": (0, 1)},
    "anchored, with biases": {"sample_from_anchor": True, "layers": dataclasses.replace(LAYERS, attention_bias=True)},
    "own matrices": {"own_embedding": True, "draft_vocab_size": 11, "target_hidden_size": 8, "num_target_layers": None},
    "draft vocabulary": {"draft_vocab_size": 5},
    "an embedding of masks": {"own_mask_embedding": True},
    "numbers": {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 20.0},
    "yarn": {
        "layers": dataclasses.replace(
            LAYERS, rope=Rope(theta=1e6, kind="yarn", factor=4.0, original_max_position_embeddings=8)
        )
    },
}


def loaded(folder: pathlib.Path, **changes: Any) -> DFlash:
    """The plain head with these entries of its `config.json`; what is `...` is left out."""
    values, entries = on_disk(filled())
    inner = {**entries["dflash_config"], **changes.pop("dflash_config", {})}
    entries = {key: value for key, value in {**entries, "dflash_config": inner, **changes}.items() if value is not ...}
    entries["dflash_config"] = {key: value for key, value in inner.items() if value is not ...}
    head = load_head(write(folder, values, entries), target())
    assert isinstance(head, DFlash)
    return head


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, tmp_path: pathlib.Path):
    head = filled(**KINDS[kind])
    save_head(head, tmp_path / "a")
    again = load_head(tmp_path / "a", target())
    assert_same(again, head)  # type: ignore[arg-type]
    save_head(again, tmp_path / "b", format="dflash")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", "model.safetensors"]
    assert_same_files(tmp_path / "a", tmp_path / "b")
    told = describe(tmp_path / "a")
    assert (told.kind, told.format, told.problem) == ("DFlash head", "dflash", None)
    assert told.config["block_size"] == 4


def test_a_published_config():
    """z-lab/Qwen3-4B-DFlash-b16: a billion bytes in bfloat16, without embedding and output matrix."""
    stated = {
        **{"architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}},
        **{"attention_bias": False, "block_size": 16, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560},
        **{"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}},
        **{"intermediate_size": 9728, "layer_types": ["full_attention"] * 5, "max_position_embeddings": 40960},
        **{"max_window_layers": 5, "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 5},
        **{"num_key_value_heads": 8, "num_target_layers": 36, "rms_norm_eps": 1e-06, "rope_scaling": None},
        **{"rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False},
        **{"vocab_size": 151936},
    }
    head = filled()
    read = dflash_config.read_config({"fc.weight": TensorInfo((2560, 5 * 2560), "bfloat16", pathlib.Path())}, stated)
    assert (read.taps, read.block_size, read.mask_token_id) == ((2, 10, 18, 26, 34), 16, 151669)
    assert (read.num_drafted, read.causal_layers, read.draft_vocab_size) == (15, (), None)
    assert read.layers.qk_norm and not read.layers.tie_word_embeddings and read.layers.sliding_window is None
    expected = names.expected(dflash.RULES, dflash.shapes(read))
    assert expected["fc.weight"] == (2560, 12800) and expected["layers.4.self_attn.q_norm.weight"] == (128,)
    assert len(expected) == 3 + 5 * 11
    assert round(2 * sum(math.prod(shape) for shape in expected.values()) / 1e9, 2) == 1.07
    assert set(names.expected(dflash.RULES, dflash.shapes(head.config))) == {
        *("fc.weight", "hidden_norm.weight", "norm.weight"),
        *(f"layers.{i}.{norm}_layernorm.weight" for i in range(3) for norm in ("input", "post_attention")),
        *(f"layers.{i}.self_attn.{x}_proj.weight" for i in range(3) for x in "qkvo"),
        *(f"layers.{i}.self_attn.{x}_norm.weight" for i in range(3) for x in "qk"),
        *(f"layers.{i}.mlp.{x}_proj.weight" for i in range(3) for x in ("gate", "up", "down")),
    }


def test_where_the_entries_stand(tmp_path: pathlib.Path):
    """In `dflash_config` or outside it; layers that the streams leave, or enter."""
    expected = filled()
    for changes in (
        {"block_size": ..., "dflash_config": {"block_size": 4}},
        {"mask_token_id": 10, "dflash_config": {"mask_token_id": ...}},
        {"target_layer_ids": [1, 0], "dflash_config": {"target_layer_ids": ...}},
        {"aux_hidden_state_layer_ids": [2, 1], "dflash_config": {"target_layer_ids": ...}},
        {"aux_hidden_state_layer_ids": [2, 1]},
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"is_causal": ...},
        {"num_anchors": 512, "use_swa": ..., "dflash_config": {"projector_type": "dflash", "use_swa": False}},
    ):
        assert_same(loaded(tmp_path, **changes), expected)  # type: ignore[arg-type]


WINDOW = {
    "sliding_window": 5,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
}


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({}, (0, 1)),
        ({"is_causal": False}, ()),
        ({"is_causal": True}, (0, 1, 2)),
        ({"dflash_config": {"causal": False}}, ()),
        ({"dflash_config": {"causal_head": True}}, (0, 1, 2)),
        ({"is_causal": False, "dflash_config": {"causal": True}}, ()),
    ],
)
def test_which_layers_are_causal(changes: dict[str, Any], causal: tuple[int, ...], tmp_path: pathlib.Path):
    """What is stated first of `is_causal`, `causal` and `causal_head`; else the layers with a window."""
    read = loaded(tmp_path, **{"is_causal": ..., **WINDOW, **changes}).config
    assert read.causal_layers == causal
    assert [read.layers.window(i) for i in range(3)] == [5, 5, None]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dflash_config": {"target_layer_ids": ...}}, ("no target_layer_ids", "no default")),
        ({"dflash_config": {"mask_token_id": ...}}, ("no mask_token_id",)),
        ({"block_size": ...}, ("no block_size",)),
        ({"rope_theta": ...}, ("no rope_theta",)),
        ({"dflash_config": {"block_size": 8}}, ("block_size is 8", "4 outside", "agree")),
        ({"aux_hidden_state_layer_ids": [1, 0]}, ("target_layer_ids is [1, 0]", "[1, 0]", "one more")),
        ({"dflash_config": {"target_layer_ids": [1, 1]}}, ("[1, 1]", "each once")),
        ({"dflash_config": {"target_layer_ids": [0, 1, -1]}}, ("[8, 16]", "3 columns")),
        ({"dflash_config": {"target_layer_ids": [1, 2]}}, ("of a target of 2 layers",)),
        ({"num_target_layers": 4}, ("num_hidden_layers=4", "has 2", "another model")),
        ({"vocab_size": 13}, ("vocab_size=13", "another model")),
        ({**WINDOW, "use_sliding_window": False}, ("layer_types", "sliding_window")),
        ({**WINDOW, "sliding_window": None}, ("layer_types", "sliding_window")),
        ({"architectures": ["DominoDraftModel"]}, ("DominoDraftModel", "DFlashDraftModel", "draft differently")),
        ({"architectures": ["DFlash2DraftModel"]}, ("no conv_group_size",)),
        ({"architectures": ["DSparkDraftModel"]}, ("no enable_confidence_head",)),
        ({"markov_rank": 256}, ("markov_rank=256", "not known")),
        ({"dflash_config": {"conv_kernel_size": 2}}, ("conv_kernel_size=2", "not known")),
        ({"dflash_config": {"use_swa": True}}, ("use_swa=True", "False")),
        ({"dflash_config": {"projector_type": "dspark"}}, ("projector_type='dspark'",)),
        ({"draft_vocab_size": 5}, ("draft_vocab_size=5", "lm_head.weight")),
        ({"target_hidden_size": 16}, ("target_hidden_size=16", "make 8")),
        ({"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}, ("lacks", "layers.3")),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}, ("does not describe", "layers.2")),
        ({"model_type": "llama"}, ("model_type 'llama'",)),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: tuple[str, ...], tmp_path: pathlib.Path):
    with refused(ValueError, *words):
        loaded(tmp_path, **changes)


def test_other_methods_tensors_are_refused_by_name(tmp_path: pathlib.Path):
    values, entries = on_disk(filled())
    for name in ("markov_head.markov_w1.weight", "candidate_selector.hidden_projection.weight", "mask_vector"):
        with refused(ValueError, name, "does not describe"):
            load_head(write(tmp_path, values | {name: np.zeros((2, 8), np.float32)}, entries), target())
    told = describe(tmp_path)
    assert told.kind == "DFlash head" and told.problem is not None and "mask_vector" in told.problem


def test_an_embedding_of_masks_in_a_file_of_its_own(tmp_path: pathlib.Path):
    """As MiMo-V2.5's drafter has it: without it every slot reads an untrained row of the target's table."""
    torch = pytest.importorskip("torch")
    values, entries = on_disk(filled())
    folder, vector = write(tmp_path, values, entries), np.arange(8, dtype=np.float32)
    expected = dataclasses.replace(
        filled(),
        params=filled().params | {"mask_embedding": jnp.asarray(vector)},
        config=dataclasses.replace(PLAIN, own_mask_embedding=True),
    )
    for held in (
        torch.from_numpy(vector),
        torch.from_numpy(vector)[None],
        {"mask_embedding": torch.from_numpy(vector)},
    ):
        torch.save(held, folder / "mask_embedding.pt")
        assert_same(load_head(folder, target()), expected)  # type: ignore[arg-type]
    convert(folder, tmp_path / "again", "dflash")
    assert_same(load_head(tmp_path / "again", target()), expected)  # type: ignore[arg-type]
    torch.save(torch.zeros(5), folder / "mask_embedding.pt")
    with refused(ValueError, "mask_embedding", "[5]", "expected 8 numbers"):
        load_head(folder, target())
    torch.save([torch.zeros(8), torch.zeros(8)], folder / "mask_embedding.pt")
    with refused(ValueError, "mask_embedding.pt", "other than one tensor"):
        load_head(folder, target())
    with refused(ValueError, "a tensor mask_embedding and mask_embedding.pt", "one of them"):
        load_head(write(folder, values | {"mask_embedding": vector}, entries), target())


def test_a_target_that_scales_its_embeddings(tmp_path: pathlib.Path):
    values, entries = on_disk(filled())
    gemma = {"query_pre_attn_scalar": 4, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    made = target(model_type="gemma2", architectures=["Gemma2ForCausalLM"], hidden_act=None, head_dim=4, **gemma)
    with refused(ValueError, "Gemma", "its own"):
        load_head(write(tmp_path, values, entries), made)


def test_no_words_for_it(tmp_path: pathlib.Path):
    plain = filled()
    for changes, word in (
        ({"causal_layers": (1,)}, "causal_layers"),
        ({"layers": dataclasses.replace(LAYERS, qk_norm=False)}, "Qwen3"),
    ):
        head = dataclasses.replace(plain, config=dataclasses.replace(PLAIN, **changes))
        with refused(ValueError, word):
            save_head(head, tmp_path)
    with refused(ValueError, "'sglang'", "DFlash head", "'dflash'"):
        save_head(plain, tmp_path, format="sglang")
    save_head(plain, tmp_path)
    with refused(ValueError, "'sglang'", "'dflash', 'speculators'"):
        convert(tmp_path, tmp_path / "there", "sglang")


def test_a_head_in_the_place_of_its_target(tmp_path: pathlib.Path):
    save_head(filled(), tmp_path)
    with pytest.raises(ValueError):
        load_target(tmp_path)


def test_loading_both_and_drafting(tmp_path: pathlib.Path):
    save_target(target(), tmp_path / "target")
    save_head(filled(), tmp_path / "head")
    model = eagle_jax.load(tmp_path / "target", tmp_path / "head", head_config={"is_causal": True})
    assert model.head.config.causal_layers == (0, 1, 2)
    plain, mine = (
        eagle_jax.generate(model, [3, 1, 4], max_new_tokens=8, drafter=drafter, tree=tree)
        for drafter, tree in (("none", "auto"), ("dflash", (4, 2, 1)))
    )
    assert plain.token_ids == mine.token_ids
    rounded = eagle_jax.load(tmp_path / "target", tmp_path / "head", quantize="draft:int8")
    assert eagle_jax.generate(rounded, [3, 1, 4], max_new_tokens=8).token_ids == plain.token_ids
    assert plan(tmp_path / "target", tmp_path / "head", nodes=4).head > 0
    with pytest.raises(ValueError, match="drafts 3 tokens"):
        eagle_jax.generate(model, [3, 1, 4], max_new_tokens=8, drafter="dflash", tree=(6, 4, 1))
    with pytest.raises(
        ValueError, match='needs an EAGLE head, and the model has a DFlash head, which drafts with drafter="dflash"'
    ):
        eagle_jax.generate(model, [3, 1, 4], max_new_tokens=8, drafter="eagle")
