"""Medusa and Hydra heads in folders: there and back, as published, and what is refused."""

import dataclasses
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from eagle_jax.configs.heads import HydraConfig, MedusaConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import convert, describe, load_head, load_target, names, save_head
from eagle_jax.converters.heads import hydra, medusa, parallel
from eagle_jax.models.heads import Hydra, Medusa
from tests.converters.folders import ENTRIES, assert_same, refused, target, tensors, write
from tests.converters.heads.dflash_heads import assert_same_files

SIZES = {"hidden_size": 8, "vocab_size": 11, "num_heads": 3, "num_layers": 2}
LAYER = dataclasses.replace(target().config, num_hidden_layers=1, intermediate_size=10)
KINDS = {
    "medusa": (Medusa, MedusaConfig(**SIZES)),
    "hydra": (Hydra, HydraConfig(**SIZES)),
    "hydra++": (Hydra, HydraConfig(**SIZES, prefix=LAYER)),
}


def filled(kind: str) -> Medusa | Hydra:
    """Heads of this kind with some weights; quicker than an initialisation, which compiles."""
    cls, config = KINDS[kind]
    draw = np.random.default_rng(0).standard_normal
    shapes = parallel.shapes(config)
    return cls(params=jax.tree.map(lambda leaf: jnp.asarray(draw(leaf.shape, np.float32)), shapes), config=config)


def on_disk(kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and `config.json` of `filled(kind)`."""
    head = filled(kind)
    if isinstance(head, Medusa):
        return dict(names.tensors(medusa.rules(head.config), head.params)), medusa.entries_for(head.config, "lmsys/v")
    return dict(names.tensors(hydra.rules(head.config), head.params)), hydra.entries_for(head.config, "lmsys/v")


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, tmp_path: pathlib.Path):
    head = filled(kind)
    save_head(head, tmp_path / "a", target_name="lmsys/vicuna-7b-v1.3")
    again = load_head(tmp_path / "a", target())
    assert_same(again, head)
    save_head(again, tmp_path / "b", format=kind.rstrip("+"), target_name="lmsys/vicuna-7b-v1.3")
    assert_same_files(tmp_path / "a", tmp_path / "b")
    name = f"{kind.rstrip('+')}_lm_head.safetensors"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", name]
    told = describe(tmp_path / "a")
    assert (told.kind, told.format, told.problem) == (f"{kind.rstrip('+').capitalize()} heads", kind.rstrip("+"), None)
    assert told.config["num_heads"] == 3
    assert told.config.get("prefix") == (None if kind != "hydra++" else "a decoder layer as its target's")


def test_keys_are_the_published_ones():
    """As `state_dict` of the authors' classes names them; dropout takes numbers in Hydra++."""
    assert set(on_disk("medusa")[0]) == {
        *(f"{k}.{layer}.linear.{part}" for k in range(3) for layer in range(2) for part in ("weight", "bias")),
        *(f"{k}.2.weight" for k in range(3)),
    }
    plain, plus = on_disk("hydra")[0], on_disk("hydra++")[0]
    for values, first, second, output in ((plain, 0, 1, "hydra_lm_head.1"), (plus, 1, 3, "hydra_lm_head.1.1")):
        assert values[f"hydra_mlp.1.{first}.linear.weight"].shape == (8, 24)
        assert values[f"hydra_mlp.1.{first}.res_connection.weight"].shape == (8, 24)
        assert values[f"hydra_mlp.1.{second}.linear.weight"].shape == (8, 8)
        assert f"hydra_mlp.1.{second}.res_connection.weight" not in values
        assert values[f"{output}.weight"].shape == (11, 8) and values[f"{output}.bias"].shape == (11,)
    before = "prefix_embeding_layer"
    assert {f"{before}.layers.0.input_layernorm.weight", f"{before}.norm.weight"} <= set(plus)


def test_published_medusa_size():
    """Five heads in bfloat16 make FasterDecoding/medusa-vicuna-7b-v1.3, a file of 1.48 GB; its config says two."""
    config = MedusaConfig(hidden_size=4096, vocab_size=32000, num_heads=5, num_layers=1)
    expected = names.expected(medusa.rules(config), parallel.shapes(config))
    assert expected["4.0.linear.weight"] == (4096, 4096) and expected["4.1.weight"] == (32000, 4096)
    assert round(2 * sum(math.prod(shape) for shape in expected.values()) / 1e9, 2) == 1.48


def test_published_hydra_shapes():
    """ankner/hydra-vicuna-7b-v1.3: prefix-mlp, 4 heads of 4 blocks."""
    layer = LlamaConfig(
        **{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 1},
        **{"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 2048},
        **{"rms_norm_eps": 1e-6, "rope": Rope(theta=10000.0)},
    )
    config = HydraConfig(hidden_size=4096, vocab_size=32000, num_heads=4, num_layers=4, prefix=layer)
    expected = names.expected(hydra.rules(config), parallel.shapes(config))
    assert expected["hydra_mlp.3.1.linear.weight"] == (4096, 5 * 4096)
    assert expected["hydra_mlp.0.7.linear.weight"] == (4096, 4096)
    assert expected["prefix_embeding_layer.layers.0.mlp.gate_proj.weight"] == (11008, 4096)
    assert len(expected) == 9 + 1 + 4 * (2 + 2 * 4 + 2)


def test_published_configs_say_two_of_five_heads(tmp_path: pathlib.Path):
    values, entries = on_disk("medusa")
    stated = entries | {"medusa_num_heads": 2, "transformers_version": "4.31.0"}
    assert load_head(write(tmp_path, values, stated), target()).config.num_heads == 3
    with refused(ValueError, "medusa_num_heads=4", "3 heads"):
        load_head(write(tmp_path, values, stated | {"medusa_num_heads": 4}), target())


def test_what_hydra_saves_without_using_it(tmp_path: pathlib.Path):
    values, entries = on_disk("hydra++")
    unused = {
        "prefix_embeding_layer.embed_tokens.weight": np.zeros((11, 8), np.float32),
        "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(1, np.float32),
    }
    assert_same(load_head(write(tmp_path, values | unused, entries), target()), filled("hydra++"))


def test_heads_trained_with_their_target(tmp_path: pathlib.Path):
    """Medusa-2: one folder is the target and its heads."""
    values = tensors(target()) | {f"medusa_head.{key}": value for key, value in on_disk("medusa")[0].items()}
    write(tmp_path, values, ENTRIES | {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "a/b"})
    lm = load_target(tmp_path)
    assert_same(lm, target())
    assert_same(load_head(tmp_path, lm), filled("medusa"))
    assert describe(tmp_path).kind == "target"


def test_pickled_as_published(tmp_path: pathlib.Path):
    torch = pytest.importorskip("torch")
    values, entries = on_disk("hydra")
    torch.save({key: torch.from_numpy(value.copy()) for key, value in values.items()}, tmp_path / "hydra_lm_head.pt")
    (tmp_path / "config.json").write_text(json.dumps(entries))
    assert_same(load_head(tmp_path, target()), filled("hydra"))


BROKEN: dict[str, tuple[str, dict[str, Any], list[str], tuple[str, ...]]] = {
    # kind, entries changed, tensors dropped, words
    "blocks": ("medusa", {"medusa_num_layers": 1}, [], ("medusa_num_layers=1", "2 blocks")),
    "unknown key": ("medusa", {"truncated_vocab_size": 5}, [], ("truncated_vocab_size=5", "not known")),
    "no output": ("medusa", {}, ["0.2.weight"], ("lack a matrix 0.2.weight",)),
    "missing": ("medusa", {}, ["2.1.linear.bias"], ("lacks 1 tensor", "2.1.linear.bias")),
    "another architecture": ("hydra", {"hydra_head_arch": "eagle-attn"}, [], ("'eagle-attn' is not supported",)),
    "no layer": ("hydra", {"hydra_head_arch": "prefix-mlp"}, [], ("prefix-mlp", "is not there")),
    "heads": ("hydra", {"hydra_num_heads": 4}, [], ("hydra_num_heads=4", "it is 3")),
    "offset": ("hydra", {"hidden_state_offset": 1}, [], ("hidden_state_offset=1",)),
    "not grounded": ("hydra", {}, ["hydra_mlp.0.0.res_connection.weight"], ("res_connection", "grounded_heads=true")),
    "gate": ("hydra++", {}, ["prefix_embeding_layer.layers.0.mlp.gate_proj.weight"], ("mlp.gate_proj.weight",)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_understood(case: str, tmp_path: pathlib.Path):
    kind, changes, dropped, words = BROKEN[case]
    values, entries = on_disk(kind)
    for key in dropped:
        del values[key]
    write(tmp_path, values, entries | changes)
    with refused(ValueError, *words):
        load_head(tmp_path, target())
    told = describe(tmp_path).problem
    assert told is not None and words[0] in told


def test_another_target(tmp_path: pathlib.Path):
    save_head(filled("medusa"), tmp_path)
    with refused(ValueError, "a vocabulary of 11 tokens", "has 12"):
        load_head(tmp_path, target(vocab_size=12))
    with refused(ValueError, "hidden states of 8 numbers", "has 16"):
        load_head(tmp_path, target(hidden_size=16))


def test_one_format_each(tmp_path: pathlib.Path):
    with refused(ValueError, "'sglang'", "'hydra'"):
        save_head(filled("hydra"), tmp_path / "out", format="sglang")
    save_head(filled("medusa"), tmp_path / "in")
    with refused(ValueError, "Medusa heads", "expected an EAGLE or DFlash head"):
        convert(tmp_path / "in", tmp_path / "out", "sglang")
    with refused(FileExistsError, "other weights", "medusa_lm_head.safetensors"):
        save_head(filled("hydra"), tmp_path / "in")
    assert "0.2.weight" in load_file(tmp_path / "in" / "medusa_lm_head.safetensors")
