"""Checkpoints with one mistake each, and the words that name it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from folders import ENTRIES, entries, head, head3, target, tensors

Values = dict[str, np.ndarray]
Entries = dict[str, Any]
Damage = Callable[[Values, Entries], None]


def only(**tensors: np.ndarray) -> Damage:
    def damage(values: Values, entries: Entries) -> None:
        values.clear()
        values.update(tensors)

    return damage


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
FILE = "config.json"  # its whole path, where it is among the words
TAPS = "eagle_aux_hidden_state_layer_ids"
# Which checkpoint, and the mistake -> what is done to its tensors and its config, and what the sentence must say.
CASES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    # Renamed, missing, extra
    "1: fc renamed": (renamed("fc.weight", "fc1.weight"), ("fc.weight",)),
    "1: fc missing": (without("fc.weight"), ("fc.weight",)),
    "1: a matrix missing": (without("layers.0.mlp.gate_proj.weight"), ("lack a matrix layers.0.mlp.gate_proj.weight",)),
    "1: norm missing": (
        without("layers.0.post_attention_layernorm.weight"),
        ("layers.0.post_attention_layernorm.weight",),
    ),
    "1: half the bias": (tensor(Q1.replace("weight", "bias"), ones(8)), ("self_attn.k_proj.bias",)),
    "1: a norm that layer 0 has not": (
        tensor("layers.0.input_layernorm.weight", ones(8)),
        ("holds 1 tensor", "layers.0.input_layernorm.weight [8]"),
    ),
    "1: a second layer in part": (tensor("layers.1.mlp.up_proj.weight", ones(12, 8)), ("layers.1.",)),
    "1: an output matrix without mapping": (
        tensor("lm_head.weight", ones(11, 8)),
        ("holds 1 tensor", "lm_head.weight [11, 8]"),
    ),
    "3: q_proj renamed": (renamed(Q3, "midlayer.self_attn.query.weight"), (Q3,)),
    "3: hidden_norm missing": (
        without("midlayer.hidden_norm.weight"),
        ("lacks 1 tensor", "midlayer.hidden_norm.weight"),
    ),
    "3: fc missing": (without("fc.weight"), ("fc.weight",)),
    "3: fc with a bias": (tensor("fc.bias", ones(8)), ("fc.bias [8]",)),
    "3: norm missing": (without("norm.weight"), ("norm.weight",)),
    "3: output matrix missing": (without("lm_head.weight"), ("lm_head.weight",)),
    "3: another method's tensor": (tensor("mask_embed", ones(1, 24)), ("mask_embed [1, 24]",)),
    "3: P-EAGLE's tensor": (tensor("mask_hidden", ones(1, 24)), ("a P-EAGLE head", "no mask token")),
    "3: layers of SGLang's own": (
        tensor("additional_layers.0.mlp.up_proj.weight", ones(12, 8)),
        ("additional_layers.0.mlp.up_proj.weight",),
    ),
    "3.1: one norm of three missing": (without("fc_norm.1.weight"), ("fc_norm.1.weight",)),
    "3.1: all three missing": (without(*(f"fc_norm.{i}.weight" for i in range(3))), ("fc_norm=True", "not there")),
    "s: input norm not announced": (tensor("input_norm.weight", ones(24)), ("norm_before_fc=False", "there")),
    "s: verifier's weights": (tensor("verifier_lm_head.weight", ones(5, 8)), ("verifier_lm_head.weight [5, 8]",)),
    # Transposed, misshapen
    "1: fc transposed": (tensor("fc.weight", lambda x: x.T), ("fc.weight", "[16, 8]")),
    "1: down_proj transposed": (
        tensor("layers.0.mlp.down_proj.weight", lambda x: x.T),
        ("mlp.down_proj.weight", "[12, 8]", "[8, 12]"),
    ),
    "3: fc transposed": (tensor("fc.weight", lambda x: x.T), ("hidden_size=8", "24", "fc.weight")),
    "3: o_proj cut": (
        tensor("midlayer.self_attn.o_proj.weight", lambda x: x[:, :6]),
        ("midlayer.self_attn.o_proj.weight", "[8, 6]", "[8, 8]"),
    ),
    "3: a norm of another width": (tensor("norm.weight", ones(6)), ("norm.weight", "[6]", "expected [8]")),
    "3: k_proj of broken heads": (
        tensor("midlayer.self_attn.k_proj.weight", ones(3, 16)),
        ("8 and 3 rows", "head_dim=2"),
    ),
    "3: output matrix transposed": (
        tensor("lm_head.weight", lambda x: x.T),
        ("draft_vocab_size=5", "8", "lm_head.weight"),
    ),
    "3: fc a vector": (tensor("fc.weight", ones(8)), ("lack a matrix fc.weight",)),
    "3: an embedding of other tokens": (
        tensor("embed_tokens.weight", ones(9, 8)),
        ("embed_tokens.weight", "[9, 8]", "[11, 8]"),
    ),
    # Wrong dtype
    "1: whole numbers": (tensor("fc.weight", ones(8, 16, dtype=np.int8)), ("fc.weight", "int8")),
    "3: whole numbers": (tensor("norm.weight", ones(8, dtype=np.int32)), ("norm.weight", "int32")),
    "3: a mapping of floats": (tensor("d2t", lambda x: x.astype(np.float32)), ("d2t", "float32", "int64")),
    "3: a mask of numbers": (tensor("t2d", lambda x: x.astype(np.int64)), ("t2d", "int64", "bool")),
    # Wrong mapping
    "3: no mapping": (without("d2t", "t2d"), ("lacks tensor d2t", "5 of the 11")),
    "3: the mask alone": (without("d2t"), ("lacks tensor d2t",)),
    "3: target ids instead of offsets": (tensor("d2t", lambda x: x + np.arange(5)), ("d2t[4]=9", "13", "offsets")),
    "3: below the vocabulary": (tensor("d2t", np.asarray([-1, 0, 0, 0, 0])), ("d2t[0]=-1", "0 to 10")),
    "3: not ascending": (tensor("d2t", np.asarray([1, 2, 1, 0, 4])), ("d2t", "3 and 3", "ascending")),
    "3: a mapping too short": (tensor("d2t", lambda x: x[:3]), ("d2t", "[3]", "expected [5]")),
    "3: a mask of more tokens": (tensor("t2d", lambda x: x | (np.arange(11) == 0)), ("t2d", "d2t", "token 0", "agree")),
    "3: a mask of another vocabulary": (tensor("t2d", ones(12, dtype=bool)), ("vocab_size=11", "12", "t2d")),
    # Wrong config
    "1: another activation": (says(hidden_act="gelu"), (FILE, "hidden_act='gelu'", "'silu'")),
    "1: an EAGLE-3 flag": (says(norm_output=True), (FILE, "norm_output=True", "not known")),
    "1: no heads": (says(num_attention_heads=None), (FILE, "no num_attention_heads")),
    "1: heads of 3 numbers": (says(head_dim=3), (FILE, "head_dim=3")),
    "1: unknown scaling": (says(rope_scaling={"type": "longrope"}), (FILE, "'longrope'")),
    "1: another vocabulary": (says(vocab_size=13), ("13", "the target has 11")),
    "3: another width": (says(hidden_size=16), ("hidden_size=16", "8", "fc.weight")),
    "3: more heads": (says(num_key_value_heads=4), ("num_key_value_heads=4", "2", "k_proj.weight")),
    "3: a wider MLP": (says(intermediate_size=99), ("intermediate_size=99", "12", "gate_proj")),
    "s: more layers": (layer_says(num_hidden_layers=2), ("num_hidden_layers=2", "layers.0")),
    "3: another draft vocabulary": (says(draft_vocab_size=6), ("draft_vocab_size=6", "5", "lm_head.weight")),
    "3: another target width": (says(target_hidden_size=4), ("target_hidden_size=4", "8", "fc.weight")),
    "3: an unknown key": (says(logit_bias=2.0), ("logit_bias=2.0", "not known")),
    "3: several unknown keys": (says(block_size=16, num_anchors=4), ("block_size=16", "num_anchors=4", "not known")),
    "3: a YaRN setting of SGLang's": (
        says(rope_scaling={"type": "yarn", "factor": 2.0, "attn_factor": 3.0}),
        ("rope_scaling.attn_factor=3.0", "1.0"),
    ),
    "3: a DFlash head": (says(architectures=["DFlashDraftModel"]), ("a DFlash head", "EAGLE-3 or P-EAGLE")),
    "3: a P-EAGLE class": (says(architectures=["PEagleDraftModel"]), ("P-EAGLE head", "mask_hidden")),
    "3: parallel drafting": (says(parallel_drafting=True, mask_token_id=3), ("tensor mask_hidden is missing",)),
    "3: another class": (says(architectures=["OwnDraftModel"]), ("'OwnDraftModel'", "unknown class")),
    "3: a number for a flag": (says(norm_output=1), ("norm_output=1", "true or false")),
    "3: five taps": (says(num_aux_hidden_states=5), ("num_aux_hidden_states=5", "reads 3 target layers")),
    "3: taps that are no layers": (says(eagle_config={TAPS: [0, "x", 2]}), (TAPS, "'x'")),
    "3: taps out of order": (says(eagle_config={TAPS: [1, 0, -1]}), (TAPS, "[1, 0, -1]", "ascending")),
    "3: two taps": (says(eagle_config={TAPS: [0, 1]}), ("fc.weight has 24 columns", "[1, 2]", "2 times 8")),
    "3: taps in two places": (says(**{TAPS: [0, 1, 3]}), (TAPS, "[0, 1, 3]", "[-1, 0, 1]", "one less")),
    "3: taps beyond the target": (says(eagle_config={TAPS: [0, 1, 28]}), ("[1, 2, 29]", "has 2")),
    "3: no taps": (says(eagle_config=None), (TAPS, "at least 7 layers")),
    "3: an unknown key in eagle_config": (
        says(eagle_config={TAPS: [-1, 0, 1], "heads": 3}),
        ("eagle_config", "heads=3"),
    ),
    "3: another decoder": (
        says(eagle_config={"use_last_layernorm": False}),
        ("eagle_config", "use_last_layernorm=False"),
    ),
    "3: quantized": (
        says(quantization_config={"bits": 4}),
        ("quantization_config", "quantized in 4 bits by a method that it does not name"),
    ),
    "s: no layer": (says(transformer_layer_config=None), ("transformer_layer_config",)),
    "s: a layer of another family": (layer_says(model_type="gemma3"), ("'gemma3'", "llama, qwen3")),
    "s: an unknown key of the layer": (layer_says(clip=1), ("transformer_layer_config", "clip=1", "not known")),
    "s: residual not stated": (says(norm_before_residual=None), ("norm_before_residual", "vLLM")),
    "s: two norms at once": (
        both(
            says(norm_before_fc=True, fc_norm=True),
            tensor("input_norm.weight", ones(24)),
            *(tensor(f"fc_norm.{i}.weight", ones(8)) for i in range(3)),
        ),
        ("norm_before_fc and fc_norm",),
    ),
    "s: another method": (says(speculators_model_type="dflash"), ("'dflash'", "a DFlash head")),
    "s1: extra norms": (says(layernorms=True), ("layernorms=True", "False")),
    "s1: fc renamed": (renamed("fusion_fc.weight", "fc.weight"), ("fusion_fc.weight",)),
    # Two formats at once
    "3: two spellings": (
        lambda values, entries: values.update(tensors(head3(), "speculators")),
        ("midlayer.*", "layers.0.*", "two formats"),
    ),
    "1: EAGLE-1 inside EAGLE-3": (
        lambda values, entries: values.update(tensors(head3())),
        ("midlayer.*", "layers.0.*"),
    ),
    "s: a flat layer in a nested config": (says(num_attention_heads=4), ("num_attention_heads=4", "not known")),
    "1: nothing of a head": (only(anything=ones(2, 3)), ("holds no draft head", "fc.weight")),
    # Targets
    "t: projection missing": (without("model.layers.1.mlp.up_proj.weight"), ("model.layers.1.mlp.up_proj.weight",)),
    "t: embedding transposed": (
        tensor("model.embed_tokens.weight", lambda x: x.T),
        ("model.embed_tokens.weight", "[8, 11]"),
    ),
    "t: renamed": (renamed("model.norm.weight", "norm.weight"), ("model.norm.weight",)),
    "t: an attention of another kind": (says(is_causal=False), ("is_causal=False", "True")),
}


def made(kind: str) -> tuple[Values, Entries]:
    """A checkpoint without mistakes, by what stands before the colon of a case."""
    if kind == "t":
        return tensors(target()), dict(ENTRIES)
    model, format = {
        "1": (head(), "safeailab"),
        "3": (head3(), "safeailab"),
        "3.1": (head3(fc_norm=True, norm_output=True), "sglang"),
        "s": (head3(), "speculators"),
        "s1": (head(), "speculators"),
    }[kind]
    return tensors(model, format), entries(model, format)
