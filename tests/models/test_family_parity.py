"""Families against transformers' own classes: logits, greedy texts from trees and chunks, and every fact left out."""

import functools
import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import padded, params_of
from family_cases import FAMILIES, LEFT_OUT, NEW, PROMPT, without
from parity_cases import LENGTH, VOCABULARY, texts, weights
from reference import SOURCES, answers
from safetensors.numpy import save_file

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import config_from_hf, config_to_hf, llama, load_target, names, save_target
from eagle_jax.converters.families import tensors
from eagle_jax.converters.families.rows import FAMILIES as ROWS
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import Drafter
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.struct import pytree

TOLERANCE = 1e-4
CHUNK, SLOTS = 5, 112
OLD = {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "mixtral", "qwen3_moe"}  # test_llama_parity.py


def stored(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of the family's files, with their shapes."""
    apart = names.expected(llama.rules(config), llama.shapes(config))
    joined = tensors.join(config, ((name, np.zeros(shape, np.int8)) for name, shape in apart.items()))
    return {name: value.shape for name, value in joined}


def write(folder: pathlib.Path, name: str) -> None:
    case = FAMILIES[name]
    save_file(weights(case, stored(config_from_hf(case.entries))), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(case.entries))


@functools.cache
def load(name: str) -> LM:
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder), name)
        return load_target(folder)


def logits(lm: LM, name: str, source: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ours and transformers', of the whole text and of the prompt alone."""
    for part, length in (("whole", LENGTH), ("prompt", PROMPT)):
        got = jax.jit(lambda lm, tokens: lm(tokens)[1])(lm, texts(FAMILIES[name])[:1, :length])
        yield np.asarray(got), answers(FAMILIES[name], source)[part]


def test_every_family_is_compared():
    assert {case.entries["model_type"] for case in FAMILIES.values()} | OLD == ROWS.keys()


@pytest.mark.matrix
@pytest.mark.parity
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits(name: str, source: str):
    for got, expected in logits(load(name), name, source):
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.matrix
@pytest.mark.parity
@pytest.mark.parametrize("name, fact", LEFT_OUT, ids=lambda part: part)
def test_no_fact_can_be_left_out(name: str, fact: str):
    lm = load(name)
    changed = without(name, fact, lm.config)
    assert changed != lm.config
    both = logits(LM(params=_params_for(changed, lm), config=changed), name, "golden")
    assert any(np.abs(got - expected).max() > 10 * TOLERANCE * np.abs(expected).max() for got, expected in both)


def _params_for(config: LlamaConfig, lm: LM) -> Any:
    """The model's parameters as far as a changed config has them, and ones in the place of what is not there."""
    there = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(lm.params)}

    def at(path: Any, leaf: Any) -> Any:
        own = there.get(jax.tree_util.keystr(path))
        if own is not None and own.shape != leaf.shape:  # other heads, or another width
            own = own[tuple(slice(size) for size in leaf.shape)]
        return jnp.ones(leaf.shape) if own is None or own.shape != leaf.shape else own

    return jax.tree_util.tree_map_with_path(at, llama.shapes(config))


@pytree
class Known(Drafter):
    """Proposes two tokens of a known text, each beside a wrong one, so that nodes 2 and 3 of 5 are accepted."""

    text: jax.Array

    shape = TreeShape(nodes=5, depth=2)
    taps = ()

    def init(self, target, batch, slots):
        return ()

    def observe(self, target, state, observed):
        return ()

    def propose(self, target, state, view, mode):
        one, two = (jnp.take(self.text, view.length + ahead, mode="clip") for ahead in (1, 2))
        wrong = [(part + 1) % VOCABULARY for part in (one, two)]
        tokens = jnp.stack([view.root, wrong[0], one, two, wrong[1]], axis=1).astype(jnp.int32)
        parent = jnp.broadcast_to(jnp.array([-1, 0, 0, 2, 2], jnp.int32)[None], tokens.shape)
        return Tree(tokens=tokens, parent=parent, valid=jnp.ones_like(tokens, bool)), ()


@pytest.mark.matrix
@pytest.mark.parity
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_of_trees_and_chunks(name: str, source: str, room_for_programs):
    """The prompt in chunks of 5, and a cache that is committed from trees, in the layout of decoding."""
    said = answers(FAMILIES[name], source)["said"].tolist()
    assert len(set(said)) > 3, "a text that says nothing tests nothing"
    lm, prompt = load(name), texts(FAMILIES[name])[0, :PROMPT].tolist()
    laid = LM(
        params=layout.for_decoding(jax.tree.map(lambda leaf: leaf, lm.params), lm.config.head_dims), config=lm.config
    )
    tokens, steps = _decoded(laid, Known(text=jnp.array(prompt + said + [0, 0], jnp.int32)), prompt)
    assert tokens == said
    assert steps <= NEW // 3 + 2, "two guesses of three tokens are right"


def _decoded(lm: LM, drafter: Drafter, prompt: list[int]) -> tuple[list[int], int]:
    params, padded_prompt = params_of([len(prompt)], NEW), padded([prompt], SLOTS + 8)
    mode = Sampling(sampled=False, filtered=False)
    state = compiled_prefill()(lm, drafter, params, padded_prompt, mode=mode, slots=SLOTS, chunk=CHUNK, logprobs=False)
    state = compiled_advance()(lm, drafter, params, state, jnp.int32(10**6), mode=mode)
    text = np.asarray(state.tokens)[0, len(prompt) : int(state.length[0]) + 1].tolist()
    return text, int(state.steps)


@pytest.mark.matrix
@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip(name: str, tmp_path: pathlib.Path):
    """Read, written, read again: the same config, the same parameters, and tensors byte for byte."""
    lm = load(name)
    assert config_from_hf(config_to_hf(lm.config)) == lm.config
    assert config_to_hf(lm.config)["model_type"] == FAMILIES[name].entries["model_type"]
    save_target(lm, tmp_path)
    again = load_target(tmp_path)
    assert again.config == lm.config
    jax.tree.map(np.testing.assert_array_equal, again.params, lm.params)
    written = dict(tensors.join(lm.config, names.tensors(llama.rules(lm.config), lm.params)))
    drawn = weights(FAMILIES[name], stored(lm.config))
    assert written.keys() == drawn.keys() and all(np.array_equal(written[key], drawn[key]) for key in drawn)
