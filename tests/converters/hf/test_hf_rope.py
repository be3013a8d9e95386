"""Rotary settings, in the spellings that published configs use."""

import math
from typing import Any

import pytest

from eagle_jax.configs.target import Rope
from eagle_jax.converters import config_from_hf, config_to_hf
from eagle_jax.converters.hf.rope import rope_from_hf, rope_to_hf, unread_settings
from tests.converters.folders import refused

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
YARN_SCALE = 0.1 * math.log(4.0) + 1


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, Rope(theta=10000.0)),
        ({"rope_theta": None, "rope_scaling": None, "rope_parameters": None}, Rope(theta=10000.0)),
        ({"rope_theta": 500000}, Rope(theta=500000.0)),
        ({"rope_theta": 7.0, "rope_scaling": {"type": "default"}}, Rope(theta=7.0)),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, Rope(theta=7.0)),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 7.0}}, Rope(theta=7.0)),
        ({"rope_theta": 7.0, "partial_rotary_factor": 1.0}, Rope(theta=7.0)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope(theta=10000.0, kind="linear", factor=2.0)),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.0}, "rope_theta": 5.0},
            Rope(theta=5.0, kind="linear", factor=2.0),
        ),
        (
            {"rope_theta": 5.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            Rope(theta=5.0, kind="dynamic", factor=2.0, original_max_position_embeddings=128),
        ),
        (
            {"rope_theta": 5.0, "rope_scaling": {"rope_type": "llama3"} | LLAMA3},
            Rope(theta=5.0, kind="llama3", **LLAMA3),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5.0} | LLAMA3},
            Rope(theta=5.0, kind="llama3", **LLAMA3),
        ),
        (
            # a context beside the settings wins over the one within
            {"rope_scaling": {"rope_type": "llama3"} | LLAMA3, "original_max_position_embeddings": 16},
            Rope(theta=10000.0, kind="llama3", **LLAMA3 | {"original_max_position_embeddings": 16}),
        ),
        (
            {"rope_scaling": YARN | {"finetuned": True}},
            Rope(
                theta=10000.0,
                kind="yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                attention_factor=YARN_SCALE,
            ),
        ),
        (
            {"rope_scaling": YARN | {"factor": None, "truncate": False, "beta_fast": 3, "beta_slow": None}},
            Rope(
                theta=10000.0,
                kind="yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                attention_factor=YARN_SCALE,
                beta_fast=3.0,
                truncate=False,
            ),
        ),
        (
            {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 2.0}},
            Rope(
                theta=10000.0,
                kind="yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                attention_factor=YARN_SCALE / (0.2 * math.log(4.0) + 1),
            ),
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 0.5, "attention_factor": 3.0}},
            Rope(
                theta=10000.0,
                kind="yarn",
                factor=0.5,
                original_max_position_embeddings=128,
                attention_factor=3.0,
            ),
        ),
    ],
)
def test_reading(entries: dict[str, Any], expected: Rope):
    rope = rope_from_hf(entries, max_position_embeddings=128)
    assert rope == expected
    assert rope_from_hf(rope_to_hf(rope, 128), max_position_embeddings=128) == rope


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, ["'longrope'", "linear"]),
        ({"rope_scaling": {"type": "linear"}}, ["factor=None"]),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, ["factor='2'"]),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, ["positive"]),
        ({"rope_scaling": "linear"}, ["rope_scaling is 'linear'"]),
        ({"rope_theta": True}, ["rope_theta=True"]),
        ({"rope_theta": float("inf")}, ["rope_theta=inf"]),
        ({"rope_scaling": {"rope_type": ["linear"]}}, ["['linear']"]),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}},
            ["rope_type='linear' and type='dynamic'; keep the right one"],
        ),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5"]),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ["partial_rotary_factor=0.5"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["low_freq_factor=None"]),
        ({"rope_scaling": YARN | {"truncate": "no"}}, ["truncate='no'"]),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}},
            ["original_max_position_embeddings=64", "max_position_embeddings=128"],
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 3.0}},
            ["disagree"],
        ),
    ],
)
def test_refused(entries: dict[str, Any], words: list[str]):
    with refused(ValueError, *words):
        rope_from_hf(entries, max_position_embeddings=128)


def test_dynamic_from_another_length_cannot_be_written():
    rope = Rope(theta=5.0, kind="dynamic", factor=2.0, original_max_position_embeddings=64)
    with refused(ValueError, "original_max_position_embeddings=64", "max_position_embeddings=128"):
        rope_to_hf(rope, 128)


@pytest.mark.parametrize(
    ("entries", "unread"),
    [
        ({}, {}),
        ({"rope_scaling": "linear"}, {}),
        ({"rope_scaling": YARN | {"attn_factor": 2.0}}, {"rope_scaling.attn_factor": 2.0}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}, "rope_parameters": {"a": None}},
            {"rope_scaling.beta_fast": 3, "rope_parameters.a": None},
        ),
        (
            {"rope_parameters": {"full_attention": {"factor": 8.0}, "sliding_attention": {"rope_theta": 1.0}}},
            {"rope_parameters.full_attention.factor": 8.0},
        ),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0]}}, {}),
    ],
)
def test_settings_that_their_kind_does_not_read(entries: dict[str, Any], unread: dict[str, Any]):
    assert unread_settings(entries) == unread


SIZES = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 8} | {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
OSS = {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}
MINISTRAL = {"model_type": "ministral3", "rope_parameters": YARN | {"llama_4_scaling_beta": 0.1, "rope_theta": 5.0}}


@pytest.mark.parametrize(
    ("entries", "written"),
    [
        (OSS, "rope_scaling"),
        (OSS | {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "rope_parameters"),
        (MINISTRAL, "rope_scaling"),
        ({"model_type": "llama"}, "rope_scaling"),
        ({"model_type": "gemma4_unified_text"}, "rope_parameters"),
    ],
)
def test_one_spelling_is_written(entries: dict[str, Any], written: str):
    """transformers 5 takes scaling for granted in some families, unless a config says that there is none."""
    read = config_from_hf(SIZES | entries)
    again = config_to_hf(read)
    assert again.keys() & {"rope_scaling", "rope_parameters"} == {written}
    assert config_from_hf(again) == read


def test_null_beside_the_newer_spelling():
    """As published configs of Ministral 3 have it."""
    entries = SIZES | MINISTRAL
    assert config_from_hf(entries | {"rope_scaling": None}) == config_from_hf(entries)
    assert config_from_hf(entries).rope.theta == 5.0
