"""Small model folders for the converters' tests."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_jax.configs.heads import Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import config_from_hf, llama, names
from eagle_jax.converters.heads import eagle
from eagle_jax.converters.heads.eagle_entries import entries_for
from eagle_jax.converters.heads.eagle_formats import FORMATS
from eagle_jax.converters.heads.vocabulary import mapping_tensors
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM

ENTRIES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(**changes: Any) -> LlamaConfig:
    return config_from_hf(ENTRIES | changes)


def target(**changes: Any) -> LM:
    return _target(config(**changes))


def head(**changes: Any) -> Head:
    return filled(EagleConfig(layers=config(num_hidden_layers=1, **changes), fc_bias=True))


def head3(layers: dict[str, Any] | None = None, **changes: Any) -> Head3:
    """A head that drafts 5 of the 11 tokens; `layers` changes its decoder layer, `changes` the rest."""
    facts = dict(taps=(0, 1, 2), target_hidden_size=8, draft_vocab_size=5) | changes
    made = dataclasses.replace(config(num_hidden_layers=1), **(layers or {}))
    return _head3(Eagle3Config(layers=made, **facts))  # type: ignore[arg-type]


@functools.cache
def _target(made: LlamaConfig) -> LM:
    return LM(params=_filled(llama.shapes(made), 0), config=made)


@functools.cache
def filled(made: EagleConfig) -> Head:
    """The head of this config, with some weights."""
    return Head(params=_filled(eagle.shapes(made), 1), config=made)


@functools.cache
def _head3(made: Eagle3Config) -> Head3:
    ids = np.arange(made.draft_vocab_size, dtype=np.int32) * 2 + 1
    some = made.draft_vocab_size < made.layers.vocab_size
    return Head3(params=_filled(eagle.shapes(made), 2), config=made, vocabulary=jnp.asarray(ids) if some else None)


def _filled(shapes: names.Params, seed: int) -> names.Params:
    """Random numbers of these shapes; quicker than an initialisation, which compiles."""
    draw = np.random.default_rng(seed).standard_normal
    return jax.tree.map(lambda leaf: jnp.asarray(draw(leaf.shape, np.float32) / 8), shapes)


def tensors(model: LM | DraftHead, format: str = "safeailab") -> dict[str, np.ndarray]:
    """The model's tensors as they lie on disk."""
    if isinstance(model, LM):
        return dict(names.tensors(llama.rules(model.config), model.params))
    form = FORMATS[format]
    values = dict(names.tensors((form.eagle3 if isinstance(model, Head3) else form.eagle1).rules, model.params))
    if model.vocabulary is not None:
        values |= mapping_tensors(np.asarray(model.vocabulary), model.config.layers.vocab_size)
    return values


def entries(head: DraftHead, format: str = "safeailab") -> dict[str, Any]:
    """A head's `config.json`."""
    return entries_for(format, head.config, "float32")


def write(folder: pathlib.Path, values: Mapping[str, np.ndarray], entries: Mapping[str, Any] = ENTRIES) -> pathlib.Path:
    """A model folder with these tensors, in safetensors, and this config."""
    save_file(dict(values), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(entries)))
    return folder


def assert_same(left: LM | DraftHead, right: LM | DraftHead) -> None:
    """The same parameters, bit for bit, and the same configuration."""
    assert left.config == right.config
    jax.tree.map(np.testing.assert_array_equal, left, right)


def same_leaves(one: Any, other: Any) -> None:
    """Two trees of the same structure whose arrays are equal, bit for bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@contextlib.contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """The block fails with one sentence that says all of `words`."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message and len(re.sub(r"\S*/", "", message)) < 300, message
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
