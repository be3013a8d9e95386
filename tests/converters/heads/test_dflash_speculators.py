"""DFlash heads in the layout of vLLM speculators: there and back, as published, and what it has no words for."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from eagle_jax.converters import convert, describe, load_head, save_head, save_target
from eagle_jax.models.dflash import DFlash
from tests.converters.folders import assert_same, refused, target, write
from tests.converters.heads import dflash_heads
from tests.converters.heads.dflash_heads import LAYERS, WINDOWED, assert_same_files, tensors

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "draft vocabulary": {"draft_vocab_size": 5},
    "own output": {"draft_vocab_size": 11},
    "anchored": {"sample_from_anchor": True},
    "some windows": {"layers": WINDOWED},
    "some windows, causal": {"layers": WINDOWED, "causal_layers": (0, 1)},
}


filled = functools.partial(dflash_heads.filled, dflash_heads.UNSTATED)


def published(**changes: Any) -> dict[str, Any]:
    """A config as speculators writes it: what is a Qwen3's default is left out of the inner object."""
    inner = {
        **{"attention_bias": False, "dtype": "bfloat16", "head_dim": 4, "hidden_act": "silu", "hidden_size": 8},
        **{"intermediate_size": 12, "layer_types": ["full_attention"] * 3, "max_position_embeddings": 32},
        **{"max_window_layers": 3, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 3},
        **{"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "vocab_size": 11, "use_cache": True},
        **changes.pop("transformer_layer_config", {}),
    }
    outer = {
        **{"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "speculators_version": "0.5.0"},
        **{"aux_hidden_state_layer_ids": [2, 1], "block_size": 4, "draft_vocab_size": 5, "mask_token_id": 10},
        **{"target_hidden_size": None, "tie_word_embeddings": False, "transformers_version": "5.0.0"},
        **{"speculators_config": {"algorithm": "dflash"}, "max_anchors": 3072, "sliding_window_non_causal": False},
        **{"projector_type": "dflash", "emb_dim": 256, "gru_hidden_dim": 1024, "pure_draft_prefix_len": 1},
        **{"lambda_base_start": 1.0, "lambda_base_decay_ratio": 1.0, "auf": False, "shift_label": False},
        **changes,
    }
    inner = {name: value for name, value in inner.items() if value is not ...}
    return {name: value for name, value in outer.items() if value is not ...} | {"transformer_layer_config": inner}


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, tmp_path: pathlib.Path):
    head = filled(**KINDS[kind])
    save_head(head, tmp_path / "a", format="speculators", target=target(), target_name="org/target")
    assert_same(load_head(tmp_path / "a", target()), head)  # type: ignore[arg-type]
    written = json.loads((tmp_path / "a" / "config.json").read_text())
    assert written["speculators_config"]["verifier"] == {
        "name_or_path": "org/target",
        "architectures": ["LlamaForCausalLM"],
    }
    assert written["aux_hidden_state_layer_ids"] == [2, 1] and "dflash_config" not in written
    told = describe(tmp_path / "a")
    assert (told.kind, told.format, told.problem) == ("DFlash head", "speculators", None)


def test_as_published(tmp_path: pathlib.Path):
    """With tensors of the target beside it, which are left there."""
    head = filled(draft_vocab_size=5)
    given = target()
    beside = {
        "verifier_norm.weight": np.ones(8, np.float32),
        "verifier_lm_head.weight": np.ones((5, 8), np.float32),
        "embed_tokens.weight": np.asarray(given.table),
    }
    read = load_head(write(tmp_path, tensors(head) | beside, published()), given)
    assert_same(read, head)  # type: ignore[arg-type]
    other = beside | {"embed_tokens.weight": np.zeros((11, 8), np.float32)}
    read = load_head(write(tmp_path, tensors(head) | other, published(architectures=["DFlashDraftModel"])), given)
    assert isinstance(read, DFlash) and read.config.own_embedding
    np.testing.assert_array_equal(read.params["embed_tokens"]["embedding"], 0)


def test_what_transformers_leaves_out(tmp_path: pathlib.Path):
    """Of a Qwen3's defaults nothing is written: 32 heads of 128."""
    wide = dataclasses.replace(LAYERS, num_attention_heads=32, num_key_value_heads=32, head_dim=128, rms_norm_eps=1e-6)
    head = filled(layers=wide, draft_vocab_size=5)
    absent = {name: ... for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")}
    stated = published(transformer_layer_config=absent)
    assert_same(load_head(write(tmp_path, tensors(head), stated), target()), head)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculators_model_type": "dspark"}, ("speculators_model_type='dspark'", "expected 'dflash'")),
        ({"architectures": ["DFlash2DraftModel"]}, ("DFlash2DraftModel", "DFlashSpeculator")),
        ({"projector_type": "domino"}, ("projector_type='domino'",)),
        ({"conv_kernel_size": 2}, ("conv_kernel_size=2", "not known")),
        ({"transformer_layer_config": {"model_type": "llama"}}, ("model_type 'llama'",)),
        ({"transformer_layer_config": {"rope_theta": ...}}, ("no rope_theta",)),
        ({"aux_hidden_state_layer_ids": ...}, ("no default",)),
        ({"mask_token_id": None}, ("no mask_token_id",)),
        ({"draft_vocab_size": 6}, ("draft_vocab_size=6", "make 5")),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: tuple[str, ...], tmp_path: pathlib.Path):
    folder = write(tmp_path, tensors(filled(draft_vocab_size=5)), published(**changes))
    with refused(ValueError, *words):
        load_head(folder, target())


def test_tensors_of_the_target_in_the_authors_layout(tmp_path: pathlib.Path):
    save_head(filled(), tmp_path / "a")
    entries = json.loads((tmp_path / "a" / "config.json").read_text())
    values = tensors(filled()) | {"verifier_norm.weight": np.ones(8, np.float32)}
    with refused(ValueError, "verifier_norm.weight"):
        load_head(write(tmp_path, values, entries), target())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"causal_layers": (0, 1, 2)}, ("causal_layers",)),
        ({"output_multiplier": 0.5}, ("scales",)),
        ({"own_embedding": True}, ("embeddings of its own",)),
        ({"own_mask_embedding": True}, ("embeddings of its own",)),
        ({"layers": dataclasses.replace(LAYERS, qk_norm=False)}, ("Qwen3",)),
    ],
)
def test_no_words_for_it(changes: dict[str, Any], words: tuple[str, ...], tmp_path: pathlib.Path):
    with refused(ValueError, *words, "save it as dflash"):
        save_head(filled(**changes), tmp_path, format="speculators")


def test_converting(tmp_path: pathlib.Path):
    """From the authors' layout and back, bit for bit."""
    save_target(target(), tmp_path / "target")
    head = filled(draft_vocab_size=5)
    save_head(head, tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b", "speculators", target=tmp_path / "target")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["speculators_model_type"] == "dflash"
    assert_same(load_head(tmp_path / "b", target()), head)  # type: ignore[arg-type]
    convert(tmp_path / "b", tmp_path / "c", "dflash")
    assert_same_files(tmp_path / "a", tmp_path / "c")
    with refused(ValueError, "'sglang'", "DFlash head", "'dflash', 'speculators'"):
        convert(tmp_path / "a", tmp_path / "d", "sglang")
    with refused(ValueError, "names the target"):
        convert(tmp_path / "a", tmp_path / "d", "speculators")
