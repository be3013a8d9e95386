"""DFlash 2's and DSpark's heads in folders: there and back, as published, and what is refused instead of guessed."""

import dataclasses
import json
import pathlib
from typing import Any

import jax.numpy as jnp
import pytest

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.converters import convert, describe, load_head, save_head
from eagle_jax.converters.heads import dflash_config, dflash_edges
from eagle_jax.converters.tensor_file import TensorInfo
from tests.converters.folders import assert_same, refused, target, write
from tests.converters.heads.dflash_heads import LAYERS, assert_same_files, filled, on_disk

DFLASH2: dict[str, Any] = {"convolution": ConvolutionConfig(2, 4), "selector": SelectorConfig(3, 5)}
DSPARK: dict[str, Any] = {"markov": MarkovConfig(3, "vanilla"), "sample_from_anchor": True}
OWN: dict[str, Any] = {"own_embedding": True, "draft_vocab_size": 11}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash 2": ("DFlash2DraftModel", DFLASH2),
    "dflash 2, three slots in a kernel": ("DFlash2DraftModel", DFLASH2 | {"convolution": ConvolutionConfig(3, 2)}),
    "dspark, SpecForge's": ("DSparkDraftModel", DSPARK),
    "dspark, gated": ("DSparkDraftModel", DSPARK | {"markov": MarkovConfig(3, "gated")}),
    "dspark, DeepSpec's": ("Qwen3DSparkModel", DSPARK | OWN),
    "dspark, remembering, sure": (
        "Qwen3DSparkModel",
        DSPARK | OWN | {"markov": MarkovConfig(3, "rnn"), "confidence": ConfidenceConfig(True)},
    ),
    "dspark without a Markov head": (
        "DSparkDraftModel",
        DSPARK | {"markov": None, "confidence": ConfidenceConfig(False)},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, tmp_path: pathlib.Path):
    head = filled(**KINDS[kind][1])
    save_head(head, tmp_path / "a")
    assert describe(tmp_path / "a").kind == ("DFlash 2 head" if "selector" in KINDS[kind][1] else "DSpark head")
    again = load_head(tmp_path / "a", target())
    assert_same(again, head)  # type: ignore[arg-type]
    save_head(again, tmp_path / "b")
    assert_same_files(tmp_path / "a", tmp_path / "b")
    entries = json.loads((tmp_path / "a" / "config.json").read_text())
    assert entries["architectures"] == [KINDS[kind][0]]
    assert describe(tmp_path / "a").problem is None


def test_the_codebooks_are_bare():
    named = on_disk(filled(**KINDS["dflash 2"][1]))[0].keys()
    assert {f"candidate_selector.{each}_codebook" for each in ("predecessor", "successor")} <= named


def test_older_names(tmp_path: pathlib.Path):
    """SpecForge's older files have a prefix before the small heads' names."""
    kind = "dspark, gated"
    values, entries = on_disk(filled(**KINDS[kind][1]))
    values = {f"logit_head.{name}" if "markov" in name else name: value for name, value in values.items()}
    assert_same(load_head(write(tmp_path, values, entries), target()), filled(**KINDS[kind][1]))  # type: ignore[arg-type]


def test_older_names_are_converted(tmp_path: pathlib.Path):
    values, entries = on_disk(filled(**KINDS["dspark, gated"][1]))
    older = {f"logit_head.{name}" if "markov" in name else name: value for name, value in values.items()}
    (tmp_path / "a").mkdir()
    convert(write(tmp_path / "a", older, entries), tmp_path / "b", "dflash")
    save_head(filled(**KINDS["dspark, gated"][1]), tmp_path / "c")
    assert_same_files(tmp_path / "b", tmp_path / "c")


def test_a_copy_of_the_targets_embedding_stays(tmp_path: pathlib.Path):
    """DeepSpec's heads all bring one; without it the layout would be SpecForge's, which reads no output matrix."""
    model = target()
    head = filled(**KINDS["dspark, DeepSpec's"][1])
    head.params["embed_tokens"] = {"embedding": jnp.asarray(model.table)}
    save_head(head, tmp_path / "a")
    again = load_head(tmp_path / "a", model)
    save_head(again, tmp_path / "b")
    assert_same_files(tmp_path / "a", tmp_path / "b")


def published(name: str, **more: Any) -> DFlashConfig:
    """What the config of Qwen3-8B's head of a method says."""
    layers = {
        **{"attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096},
        **{"intermediate_size": 12288, "max_position_embeddings": 40960, "model_type": "qwen3", "num_hidden_layers": 5},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "vocab_size": 151936},
        **{"tie_word_embeddings": False, "num_target_layers": 36, "architectures": [name]},
    }
    info = {"fc.weight": TensorInfo((4096, 5 * 4096), "bfloat16", pathlib.Path())}
    return dflash_config.read_config(info, {**layers, **more})


TAPS = [1, 9, 17, 25, 33]
SPECFORGE = {
    **{"attention_mode": "gqa", "mask_token_id": 151669, "target_layer_ids": TAPS, "projector_type": "dspark"},
    **{"markov_rank": 256, "markov_head_type": "vanilla", "confidence_head_alpha": 1.0},
    **{"enable_confidence_head": True, "confidence_head_with_markov": True},
}


def test_published_configs():
    spark = published("DSparkDraftModel", block_size=7, rope_theta=1e6, dflash_config=SPECFORGE)
    assert (spark.num_drafted, spark.markov) == (7, MarkovConfig(256, "vanilla"))
    assert spark.confidence == ConfidenceConfig(True)
    assert spark.taps == (2, 10, 18, 26, 34) and spark.causal_layers == ()
    flat = {key: value for key, value in SPECFORGE.items() if key not in ("attention_mode", "projector_type")}
    assert published("Qwen3DSparkModel", block_size=7, num_anchors=512, rope_theta=1e6, **flat) == spark
    inner = {"block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256, "selector_top_k": 16}
    inner |= {"mask_token_id": 151669, "target_layer_ids": TAPS}
    windows = {"layer_types": ["sliding_attention"] * 5, "sliding_window": 2048, "use_sliding_window": True}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
    second = published("DFlash2DraftModel", is_causal=False, dflash_config=inner, **windows, **rope)
    assert (second.block_size, second.num_drafted, second.causal_layers) == (8, 7, ())
    assert (second.convolution, second.selector) == (ConvolutionConfig(2, 16), SelectorConfig(256, 16))
    assert second.layers.sliding_window == 2048 and second.layers.rope.theta == 1e7


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        *(("dflash 2", {name: ...}, (f"no {name}",)) for name in sorted(dflash_edges.KEYS["dflash2"])),
        ("dflash 2", {"markov_rank": 4}, ("markov_rank",)),
        ("dspark, gated", {"markov_rank": ...}, ("no markov_rank",)),
        ("dspark, gated", {"markov_head_type": "lstm"}, ("'lstm'", "vanilla, gated, rnn")),
        ("dspark, gated", {"markov_head_type": "vanilla"}, ("markov_head.gate_proj",)),
        ("dspark, gated", {"markov_rank": 4}, ("markov_head", "expected [4]")),
        ("dspark, gated", {"enable_confidence_head": True}, ("no confidence_head_with_markov",)),
        ("dspark, gated", {"projector_type": "domino"}, ("projector_type",)),
        ("dspark, gated", {"mask_token_id": ...}, ("no mask_token_id",)),
        ("dspark, gated", {"target_layer_ids": ...}, ("no target_layer_ids",)),
    ],
)
def test_what_is_refused(kind: str, changes: dict[str, Any], words: tuple[str, ...], tmp_path: pathlib.Path):
    values, entries = on_disk(filled(**KINDS[kind][1]))
    inner = {**entries["dflash_config"], **changes}
    entries["dflash_config"] = {key: value for key, value in inner.items() if value is not ...}
    with refused(ValueError, *words):
        load_head(write(tmp_path, values, entries), target())


@pytest.mark.parametrize("kind", ["dflash 2", "dspark, gated", "dspark without a Markov head"])
def test_speculators_layout_has_no_words_for_them(kind: str, tmp_path: pathlib.Path):
    with refused(ValueError, "parts of a DSpark or DFlash 2 head", "save it as dflash"):
        save_head(filled(**KINDS[kind][1]), tmp_path / "a", format="speculators")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"selector": SelectorConfig(3, 5)}, "one of the two"),
        ({"markov": MarkovConfig(3, "vanilla")}, "draft from the anchor"),
        (DSPARK | {"convolution": ConvolutionConfig(2, 4)}, "parts of both"),
    ],
)
def test_what_no_format_has_words_for(parts: dict[str, Any], words: str, tmp_path: pathlib.Path):
    with pytest.raises(ValueError, match=words):
        save_head(filled(**parts), tmp_path / "a")


def test_a_dspark_config_cannot_say_that_some_layers_are_causal(tmp_path: pathlib.Path):
    """One that says nothing is read as of none, where DFlash's would be of those with a window."""
    layers = dataclasses.replace(LAYERS, sliding_window=4, full_attention_layers=(1, 2))
    head = filled(**DSPARK, layers=layers, causal_layers=(0,))
    with refused(ValueError, "causal_layers=(0,)", "DSparkDraftModel says so of all layers or of none"):
        save_head(head, tmp_path)
