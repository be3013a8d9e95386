"""Whole greedy cycles of EAGLE-1, 2 and 3, with each flag, against the published method written anew in PyTorch."""

import dataclasses
import functools
import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from batches import padded, params_of
from cycle_cases import COUNT, CYCLES, PROMPT, TARGET, cycle_state, target_state
from jaxtyping import Array, Int
from parity_cases import Case
from reference import SOURCES, answers
from safetensors.numpy import save_file

from eagle_jax.configs.heads import Eagle3Config
from eagle_jax.converters import load_head, load_target
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree
from eagle_jax.decoding.sampling import GREEDY, Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import CommittedRows, Drafter, View
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import DecodeState
from eagle_jax.models.lm import LM
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree

pytestmark = pytest.mark.parity

SLOTS, CHUNK = 64, 16


@pytest.mark.matrix
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", CYCLES, ids=str)
def test_trees_and_accepted_paths_are_the_published_ones(case: Case, source: str):
    expected, got = answers(case, source), ours(case)
    for name, values in got.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    assert (got["accepted"][:, 1:] >= 0).any(), "no draft was accepted: half of the test saw nothing"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", CYCLES, ids=str)
def test_trees_do_not_hang_on_rounding_and_are_others_where_a_flag_is_ignored(case: Case, source: str):
    expected = answers(case, source)
    assert expected["margin"] > 1e-4, "float32 might decide otherwise"
    for flag in case.entries["flags"]:
        assert expected[f"ignoring/{flag}"] >= COUNT / 2, f"{flag} makes too little of a difference to be tested"


def test_every_flag_has_a_case():
    flags = {field.name for field in dataclasses.fields(Eagle3Config)} - {"layers", "mask"}  # P-EAGLE has another cycle
    layers = {"num_hidden_layers", "head_dim", "sliding_window", "qkv_bias", "qk_norm", "rope_theta", "rope_scaling"}
    eagle3 = [case.entries["flags"] for case in CYCLES if case.name.startswith("cycle_eagle3")]
    assert {flag for each in eagle3 for flag in each} == flags | layers | {"whole_vocabulary"}


@pytree
class Recording(Drafter):
    """A drafter whose state tells, beside its own, what it last proposed: tokens and parents."""

    drafter: Eagle

    @property
    def shape(self) -> TreeShape:
        return self.drafter.shape

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps

    def init(self, target: Target, batch: int, slots: int) -> tuple[Any, Int[Array, "2 b n"]]:
        return self.drafter.init(target, batch, slots), jnp.zeros((2, batch, self.shape.nodes), jnp.int32)

    def observe(self, target: Target, state: tuple[Any, Array], observed: CommittedRows) -> tuple[Any, Array]:
        return self.drafter.observe(target, state[0], observed), state[1]

    def propose(self, target: Target, state: tuple[Any, Array], view: View, mode: Sampling) -> tuple[Tree, Any]:
        tree, draft = self.drafter.propose(target, state[0], view, mode)
        return tree, (draft, jnp.stack([tree.tokens, jnp.where(tree.valid, tree.parent, -2)]))


@functools.cache
def ours(case: Case) -> dict[str, np.ndarray]:
    """What `cycle_torch.answers` gives of the text, from checkpoints on disk, through the loop as it is."""
    target, drafter = models(case)
    request, tokens = params_of([len(PROMPT)], SLOTS), padded([PROMPT], SLOTS + CHUNK)
    state = compiled_prefill()(target, drafter, request, tokens, mode=GREEDY, slots=SLOTS, chunk=CHUNK, logprobs=False)
    texts, trees = [known(state)], []
    for cycle in range(1, COUNT + 1):
        state = compiled_advance()(target, drafter, request, state, jnp.int32(cycle), mode=GREEDY)
        trees.append(np.asarray(state.draft[1])[:, 0])
        texts.append(known(state))
    added = [text[len(before) :] for before, text in zip(texts, texts[1:], strict=False)]
    longest = max(map(len, added))
    return {
        "root": np.array(texts[0][-1]),
        "tokens": np.stack([tokens for tokens, _ in trees]),
        "parents": np.stack([parents for _, parents in trees]),
        "accepted": np.array([new + [-1] * (longest - len(new)) for new in added]),
    }


def models(case: Case) -> tuple[LM, Recording]:
    """The target and a drafter with the head; a head whose RoPE is not the target's is told of it when it is loaded."""
    head, tree = case.entries["head"], case.entries["tree"]
    rope = {name: head[name] for name in ("rope_theta", "rope_scaling") if head.get(name) != TARGET.entries.get(name)}
    shown_by_tensors = ("own_embedding", "qk_norm", *rope)
    entries = {name: value for name, value in head.items() if name not in shown_by_tensors}
    with tempfile.TemporaryDirectory() as name:
        folders = pathlib.Path(name, "target"), pathlib.Path(name, "head")
        named = {key if key == "lm_head.weight" else f"model.{key}": value for key, value in target_state().items()}
        write(folders[0], TARGET.entries, named)
        write(folders[1], entries, cycle_state(case))
        target = load_target(folders[0])
        loaded = load_head(folders[1], target, changes=rope)
    policy = EAGLE1_TREE if tree == "static" else DynamicTree(tree["total"], tree["depth"], tree["top_k"])
    return target, Recording(drafter=Eagle(head=loaded, policy=policy))


def write(folder: pathlib.Path, entries: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
    folder.mkdir()
    save_file(dict(state), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(entries))


def known(state: DecodeState) -> list[int]:
    """The text so far, the root at its end."""
    return np.asarray(state.tokens)[0, : int(state.length[0]) + 1].tolist()
