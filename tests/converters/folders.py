"""Small model folders for the converters' tests."""

import contextlib
import functools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_jax.config import EagleConfig, LlamaConfig
from eagle_jax.converters import config_from_hf, eagle, llama, names
from eagle_jax.models.eagle import Head
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
    return _head(EagleConfig(layers=config(num_hidden_layers=1, **changes), fc_bias=True))


@functools.cache
def _target(made: LlamaConfig) -> LM:
    return LM.init(made, jax.random.key(0))


@functools.cache
def _head(made: EagleConfig) -> Head:
    return Head.init(made, jax.random.key(1))


def tensors(model: LM | Head) -> dict[str, np.ndarray]:
    """The model's tensors as they lie on disk."""
    return dict(names.tensors(llama.RULES if isinstance(model, LM) else eagle.RULES, model.params))


def write(folder: pathlib.Path, values: Mapping[str, np.ndarray], entries: Mapping[str, Any] = ENTRIES) -> pathlib.Path:
    """A model folder with these tensors, in safetensors, and this config."""
    save_file(dict(values), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(entries)))
    return folder


def assert_same(left: LM | Head, right: LM | Head) -> None:
    """The same parameters, bit for bit, and the same configuration."""
    assert left.config == right.config
    jax.tree.map(np.testing.assert_array_equal, left.params, right.params)


@contextlib.contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """The block fails with one sentence that says all of `words`."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message and len(re.sub(r"\S*/", "", message)) < 300, message
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
