"""Damaged and mistaken checkpoints: one sentence each, which names the tensor, the field or the file."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from folders import ENTRIES, config, entries, head, head3, refused, target, tensors, write

from eagle_jax.converters import load_head, load_target, save_head
from eagle_jax.converters.files import Weights

Values = dict[str, np.ndarray]
Entries = dict[str, Any]
Damage = Callable[[Values, Entries], None]


@dataclasses.dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
        made: which checkpoint: `eagle1`, `eagle3`, `eagle3.1`, `speculators`, `speculators1` or `target`.
        damage: what is done to its tensors and its config.
        words: what the sentence must say.
    """

    made: str
    damage: Damage
    words: tuple[str, ...]


def renamed(old: str, new: str) -> Damage:
    def damage(values: Values, entries: Entries) -> None:
        values[new] = values.pop(old)

    return damage


def without(*names: str) -> Damage:
    def damage(values: Values, entries: Entries) -> None:
        for name in names:
            del values[name]

    return damage


def tensor(name: str, value: Any) -> Damage:
    """The tensor replaced or added; a function is applied to what is there."""

    def damage(values: Values, entries: Entries) -> None:
        values[name] = np.ascontiguousarray(value(values[name]) if callable(value) else value)

    return damage


def says(**changes: Any) -> Damage:
    """Entries of the config changed; None removes one."""

    def damage(values: Values, entries: Entries) -> None:
        for name, value in changes.items():
            entries.pop(name, None)
            if value is not None:
                entries[name] = value

    return damage


def layer_says(**changes: Any) -> Damage:
    """The same inside `transformer_layer_config`."""

    def damage(values: Values, entries: Entries) -> None:
        says(**changes)(values, entries["transformer_layer_config"])

    return damage


def both(*damages: Damage) -> Damage:
    def damage(values: Values, entries: Entries) -> None:
        for each in damages:
            each(values, entries)

    return damage


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


Q1, Q3 = "layers.0.self_attn.q_proj.weight", "midlayer.self_attn.q_proj.weight"
TAPS = "eagle_aux_hidden_state_layer_ids"

CASES: dict[str, Case] = {
    # Renamed, missing, extra
    "1: fc renamed": Case("eagle1", renamed("fc.weight", "fc1.weight"), ("fc.weight",)),
    "1: fc missing": Case("eagle1", without("fc.weight"), ("fc.weight",)),
    "1: norm missing": Case(
        "eagle1", without("layers.0.post_attention_layernorm.weight"), ("layers.0.post_attention_layernorm.weight",)
    ),
    "1: half the bias": Case("eagle1", tensor(Q1.replace("weight", "bias"), ones(8)), ("self_attn.k_proj.bias",)),
    "1: a norm that layer 0 has not": Case(
        "eagle1", tensor("layers.0.input_layernorm.weight", ones(8)), ("layers.0.input_layernorm.weight [8]",)
    ),
    "1: a second layer in part": Case("eagle1", tensor("layers.1.mlp.up_proj.weight", ones(12, 8)), ("layers.1.",)),
    "1: an output matrix without mapping": Case("eagle1", tensor("lm_head.weight", ones(11, 8)), ("lm_head.weight",)),
    "3: q_proj renamed": Case("eagle3", renamed(Q3, "midlayer.self_attn.query.weight"), (Q3,)),
    "3: hidden_norm missing": Case(
        "eagle3", without("midlayer.hidden_norm.weight"), ("lacks 1 tensor", "midlayer.hidden_norm.weight")
    ),
    "3: fc missing": Case("eagle3", without("fc.weight"), ("fc.weight",)),
    "3: fc with a bias": Case("eagle3", tensor("fc.bias", ones(8)), ("fc.bias [8]",)),
    "3: norm missing": Case("eagle3", without("norm.weight"), ("norm.weight",)),
    "3: output matrix missing": Case("eagle3", without("lm_head.weight"), ("lm_head.weight",)),
    "3: another method's tensor": Case("eagle3", tensor("mask_embed", ones(1, 24)), ("mask_embed [1, 24]",)),
    "3: P-EAGLE's tensor": Case("eagle3", tensor("mask_hidden", ones(1, 24)), ("a P-EAGLE head", "no mask token")),
    "3: layers of SGLang's own": Case(
        "eagle3",
        tensor("additional_layers.0.mlp.up_proj.weight", ones(12, 8)),
        ("additional_layers.0.mlp.up_proj.weight",),
    ),
    "3.1: one norm of three missing": Case("eagle3.1", without("fc_norm.1.weight"), ("fc_norm.1.weight",)),
    "3.1: all three missing": Case(
        "eagle3.1", without(*(f"fc_norm.{i}.weight" for i in range(3))), ("fc_norm=True", "not there")
    ),
    "s: input norm not announced": Case(
        "speculators", tensor("input_norm.weight", ones(24)), ("norm_before_fc=False", "there")
    ),
    "s: verifier's weights": Case(
        "speculators", tensor("verifier_lm_head.weight", ones(5, 8)), ("verifier_lm_head.weight [5, 8]",)
    ),
    # Transposed, misshapen
    "1: fc transposed": Case("eagle1", tensor("fc.weight", lambda x: x.T), ("fc.weight", "[16, 8]")),
    "1: down_proj transposed": Case(
        "eagle1", tensor("layers.0.mlp.down_proj.weight", lambda x: x.T), ("mlp.down_proj.weight", "[12, 8]", "[8, 12]")
    ),
    "3: fc transposed": Case("eagle3", tensor("fc.weight", lambda x: x.T), ("hidden_size=8", "24", "fc.weight")),
    "3: o_proj cut": Case(
        "eagle3",
        tensor("midlayer.self_attn.o_proj.weight", lambda x: x[:, :6]),
        ("midlayer.self_attn.o_proj.weight", "[8, 6]", "[8, 8]"),
    ),
    "3: a norm of another width": Case(
        "eagle3", tensor("norm.weight", ones(6)), ("norm.weight", "[6]", "expected [8]")
    ),
    "3: k_proj of broken heads": Case(
        "eagle3", tensor("midlayer.self_attn.k_proj.weight", ones(3, 16)), ("8 and 3 rows", "head_dim=2")
    ),
    "3: output matrix transposed": Case(
        "eagle3", tensor("lm_head.weight", lambda x: x.T), ("draft_vocab_size=5", "8", "lm_head.weight")
    ),
    "3: fc a vector": Case("eagle3", tensor("fc.weight", ones(8)), ("lack a matrix fc.weight",)),
    "3: an embedding of other tokens": Case(
        "eagle3", tensor("embed_tokens.weight", ones(9, 8)), ("embed_tokens.weight", "[9, 8]", "[11, 8]")
    ),
    # Wrong dtype
    "1: whole numbers": Case("eagle1", tensor("fc.weight", ones(8, 16, dtype=np.int8)), ("fc.weight", "int8")),
    "3: whole numbers": Case("eagle3", tensor("norm.weight", ones(8, dtype=np.int32)), ("norm.weight", "int32")),
    "3: a mapping of floats": Case(
        "eagle3", tensor("d2t", lambda x: x.astype(np.float32)), ("d2t", "float32", "int64")
    ),
    "3: a mask of numbers": Case("eagle3", tensor("t2d", lambda x: x.astype(np.int64)), ("t2d", "int64", "bool")),
    # Wrong mapping
    "3: no mapping": Case("eagle3", without("d2t", "t2d"), ("lacks tensor d2t", "5 of the 11")),
    "3: the mask alone": Case("eagle3", without("d2t"), ("lacks tensor d2t",)),
    "3: target ids instead of offsets": Case(
        "eagle3", tensor("d2t", lambda x: x + np.arange(5)), ("d2t[4]=9", "13", "offsets")
    ),
    "3: below the vocabulary": Case("eagle3", tensor("d2t", np.asarray([-1, 0, 0, 0, 0])), ("d2t[0]=-1", "0 to 10")),
    "3: not ascending": Case("eagle3", tensor("d2t", np.asarray([1, 2, 1, 0, 4])), ("d2t", "3 and 3", "ascending")),
    "3: a mapping too short": Case("eagle3", tensor("d2t", lambda x: x[:3]), ("d2t", "[3]", "expected [5]")),
    "3: a mask of more tokens": Case(
        "eagle3", tensor("t2d", lambda x: x | (np.arange(11) == 0)), ("t2d", "d2t", "token 0", "agree")
    ),
    "3: a mask of another vocabulary": Case(
        "eagle3", tensor("t2d", ones(12, dtype=bool)), ("vocab_size=11", "12", "t2d")
    ),
    # Wrong config
    "1: another activation": Case("eagle1", says(hidden_act="gelu"), ("hidden_act='gelu'", "'silu'")),
    "1: an EAGLE-3 flag": Case("eagle1", says(norm_output=True), ("norm_output=True", "not known")),
    "1: no heads": Case("eagle1", says(num_attention_heads=None), ("num_attention_heads",)),
    "1: heads of 3 numbers": Case("eagle1", says(head_dim=3), ("head_dim=3",)),
    "1: unknown scaling": Case("eagle1", says(rope_scaling={"type": "longrope"}), ("'longrope'",)),
    "1: another vocabulary": Case("eagle1", says(vocab_size=13), ("13", "the target has 11")),
    "3: another width": Case("eagle3", says(hidden_size=16), ("hidden_size=16", "8", "fc.weight")),
    "3: more heads": Case("eagle3", says(num_key_value_heads=4), ("num_key_value_heads=4", "2", "k_proj.weight")),
    "3: a wider MLP": Case("eagle3", says(intermediate_size=99), ("intermediate_size=99", "12", "gate_proj")),
    "s: more layers": Case("speculators", layer_says(num_hidden_layers=2), ("num_hidden_layers=2", "layers.0")),
    "3: another draft vocabulary": Case(
        "eagle3", says(draft_vocab_size=6), ("draft_vocab_size=6", "5", "lm_head.weight")
    ),
    "3: another target width": Case("eagle3", says(target_hidden_size=4), ("target_hidden_size=4", "8", "fc.weight")),
    "3: an unknown key": Case("eagle3", says(logit_bias=2.0), ("logit_bias=2.0", "not known")),
    "3: several unknown keys": Case(
        "eagle3", says(block_size=16, num_anchors=4), ("block_size=16", "num_anchors=4", "not known")
    ),
    "3: a YaRN setting of SGLang's": Case(
        "eagle3",
        says(rope_scaling={"type": "yarn", "factor": 2.0, "attn_factor": 3.0}),
        ("rope_scaling.attn_factor=3.0", "1.0"),
    ),
    "3: a DFlash head": Case("eagle3", says(architectures=["DFlashDraftModel"]), ("a DFlash head", "EAGLE-1, 2 or 3")),
    "3: a P-EAGLE class": Case("eagle3", says(architectures=["PEagleDraftModel"]), ("P-EAGLE head", "mask_hidden")),
    "3: parallel drafting": Case("eagle3", says(parallel_drafting=True, mask_token_id=3), ("no tensor mask_hidden",)),
    "3: another class": Case("eagle3", says(architectures=["OwnDraftModel"]), ("'OwnDraftModel'", "not known")),
    "3: a number for a flag": Case("eagle3", says(norm_output=1), ("norm_output=1", "true or false")),
    "3: five taps": Case("eagle3", says(num_aux_hidden_states=5), ("num_aux_hidden_states=5", "reads 3 target layers")),
    "3: taps that are no layers": Case("eagle3", says(eagle_config={TAPS: [0, "x", 2]}), (TAPS, "'x'")),
    "3: taps out of order": Case("eagle3", says(eagle_config={TAPS: [1, 0, -1]}), (TAPS, "[1, 0, -1]", "ascending")),
    "3: two taps": Case(
        "eagle3", says(eagle_config={TAPS: [0, 1]}), ("fc.weight has 24 columns", "[1, 2]", "2 times 8")
    ),
    "3: taps in two places": Case("eagle3", says(**{TAPS: [0, 1, 3]}), (TAPS, "[0, 1, 3]", "[-1, 0, 1]", "one less")),
    "3: taps beyond the target": Case("eagle3", says(eagle_config={TAPS: [0, 1, 28]}), ("[1, 2, 29]", "has 2")),
    "3: no taps": Case("eagle3", says(eagle_config=None), (TAPS, "at least 7 layers")),
    "3: an unknown key in eagle_config": Case(
        "eagle3", says(eagle_config={TAPS: [-1, 0, 1], "heads": 3}), ("eagle_config", "heads=3")
    ),
    "3: another decoder": Case(
        "eagle3", says(eagle_config={"use_last_layernorm": False}), ("eagle_config", "use_last_layernorm=False")
    ),
    "3: quantized": Case(
        "eagle3",
        says(quantization_config={"bits": 4}),
        ("quantization_config", "quantized in 4 bits by a method that it does not name"),
    ),
    "s: no layer": Case("speculators", says(transformer_layer_config=None), ("transformer_layer_config",)),
    "s: a layer of another family": Case("speculators", layer_says(model_type="gemma3"), ("'gemma3'", "llama, qwen3")),
    "s: an unknown key of the layer": Case(
        "speculators", layer_says(clip=1), ("transformer_layer_config", "clip=1", "not known")
    ),
    "s: residual not stated": Case("speculators", says(norm_before_residual=None), ("norm_before_residual", "vLLM")),
    "s: two norms at once": Case(
        "speculators",
        both(
            says(norm_before_fc=True, fc_norm=True),
            tensor("input_norm.weight", ones(24)),
            *(tensor(f"fc_norm.{i}.weight", ones(8)) for i in range(3)),
        ),
        ("norm_before_fc and fc_norm",),
    ),
    "s: another method": Case("speculators", says(speculators_model_type="dflash"), ("'dflash'", "a DFlash head")),
    "s1: extra norms": Case("speculators1", says(layernorms=True), ("layernorms=True", "False")),
    "s1: fc renamed": Case("speculators1", renamed("fusion_fc.weight", "fc.weight"), ("fusion_fc.weight",)),
    # Two formats at once
    "two spellings": Case(
        "eagle3",
        lambda values, entries: values.update(tensors(head3(), "speculators")),
        ("midlayer.*", "layers.0.*", "two formats"),
    ),
    "EAGLE-1 inside EAGLE-3": Case(
        "eagle1", lambda values, entries: values.update(tensors(head3())), ("midlayer.*", "layers.0.*")
    ),
    "a flat layer in a nested config": Case(
        "speculators", says(num_attention_heads=4), ("num_attention_heads=4", "not known")
    ),
    "nothing of a head": Case("eagle1", lambda values, entries: values.clear(), ("no draft head", "fc.weight")),
    # Targets
    "t: projection missing": Case(
        "target", without("model.layers.1.mlp.up_proj.weight"), ("model.layers.1.mlp.up_proj.weight",)
    ),
    "t: embedding transposed": Case(
        "target", tensor("model.embed_tokens.weight", lambda x: x.T), ("model.embed_tokens.weight", "[8, 11]")
    ),
    "t: renamed": Case("target", renamed("model.norm.weight", "norm.weight"), ("model.norm.weight",)),
    "t: an attention of another kind": Case("target", says(is_causal=False), ("is_causal=False", "True")),
}


def made(name: str) -> tuple[Values, Entries]:
    """A checkpoint without mistakes."""
    if name == "target":
        return tensors(target()), dict(ENTRIES)
    model, format = {
        "eagle1": (head(), "safeailab"),
        "eagle3": (head3(), "safeailab"),
        "eagle3.1": (head3(fc_norm=True, norm_output=True), "sglang"),
        "speculators": (head3(), "speculators"),
        "speculators1": (head(), "speculators"),
    }[name]
    return tensors(model, format), entries(model, format)


def test_there_are_more_than_fifty():
    assert len(CASES) > 50


@pytest.mark.parametrize("name", sorted({case.made for case in CASES.values()}))
def test_without_mistakes_they_load(tmp_path: pathlib.Path, name: str):
    write(tmp_path, *made(name))
    load_target(tmp_path) if name == "target" else load_head(tmp_path, target())


@pytest.mark.parametrize("name", CASES)
def test_one_sentence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Before a single weight is read."""
    case = CASES[name]
    values, stated = made(case.made)
    case.damage(values, stated)
    folder = write(tmp_path, values, stated)
    taken: list[str] = []
    take = Weights.take
    monkeypatch.setattr(Weights, "take", lambda self, key: taken.append(key) or take(self, key))
    with refused(ValueError, *case.words):
        load_target(folder) if case.made == "target" else load_head(folder, target())
    assert set(taken) <= {"d2t", "t2d"}


@pytest.mark.parametrize("keep", [0, 7, 100, -1], ids=["empty", "size cut", "header cut", "last byte lost"])
def test_truncated(tmp_path: pathlib.Path, keep: int):
    save_head(head3(), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with refused(ValueError, str(path), "not a whole safetensors file"):
        load_head(tmp_path, target())


def test_a_config_cut_short(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text()[:50])
    with refused(ValueError, str(path), "not valid JSON"):
        load_head(tmp_path, target())


def test_files_that_are_not_there(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path)
    (tmp_path / "config.json").unlink()
    with refused(FileNotFoundError, "config.json is missing"):
        load_head(tmp_path, target())
    index = {"weight_map": dict.fromkeys(tensors(head3()), "model-00001-of-00002.safetensors")}
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with refused(FileNotFoundError, "model-00001-of-00002.safetensors"):
        load_head(tmp_path, target())


def test_a_head_for_another_target(tmp_path: pathlib.Path):
    save_head(head3(), tmp_path)
    lm = target()
    for changes, words in (
        ({"hidden_size": 16}, ("features of 8", "the target's have 16")),
        ({"vocab_size": 4000}, ("vocabulary of 11", "has 4000")),
        ({"num_hidden_layers": 1}, ("layers [0, 1, 2]", "has 1")),
    ):
        other = dataclasses.replace(lm, config=dataclasses.replace(config(), **changes))
        with refused(ValueError, *words):
            load_head(tmp_path, other)
