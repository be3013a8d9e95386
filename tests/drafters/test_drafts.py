"""What drafters propose, against the head run anew over every drafted path."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_flight import after_steps, view_of
from states import roots, steps_by_row

from eagle_jax.decoding.policy import EAGLE1_TREE, NO_TREE, DynamicTree
from eagle_jax.decoding.sampling import GREEDY, Sampling
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.drafters.base import Plain, View
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.loop.state import DecodeState
from eagle_jax.models.eagle import Head
from eagle_jax.testing import synthetic_pair

TARGET, MILD = synthetic_pair(strength=0.3, error=0.15)
# a head whose attention weighs as much as what passes through it: a wrong mask or position gives another tree
HEAD = Head(
    params=MILD.params | {"layers_0": jax.tree.map(lambda x: x * 8.0 if x.ndim == 2 else x, MILD.params["layers_0"])},
    config=MILD.config,
)
TREES = {"EAGLE-1's": EAGLE1_TREE, "dynamic": DynamicTree(20, 3, 4)}
PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7, 18]]
SAMPLED = Sampling(sampled=True, filtered=False)
SLOTS = 64


@pytest.fixture(scope="module")
def state() -> DecodeState:
    state = after_steps(TARGET, Eagle(head=HEAD, policy=TREES["dynamic"]), PROMPTS, 4, chunk=16, slots=SLOTS)
    committed = np.asarray(state.length) - [len(prompt) for prompt in PROMPTS]
    assert (committed > steps_by_row(state)).any(), "no draft was accepted: nothing was observed"
    return state


@jax.jit
def propose(drafter: Eagle, draft: Any, view: View) -> Tree:
    mode = GREEDY if view.noise is None else SAMPLED
    return drafter.propose(TARGET, draft, view, mode)[0]


@jax.jit
def features_of(text: jax.Array) -> jax.Array:
    return TARGET(text[None])[0][0]


@jax.jit
def next_guess(following: jax.Array, features: jax.Array, slot: int) -> tuple[jax.Array, jax.Array]:
    """The head's output at `slot` of one whole text, and its logits. What lies behind `slot` cannot matter."""
    guess = HEAD.causal(TARGET.embed(following[None]), features[None])[:, slot]
    return guess[0], TARGET.logits(guess[:, None])[0, 0]


class Afresh:
    """Scores of the tokens after any path below one row's root, from the head's definition alone.

    Slot i holds the feature of token i and the embedding of token i + 1. Committed tokens have the target's features,
    drafted ones the head's own guesses, made one after the other. No cache, no tree.
    """

    def __init__(self, state: DecodeState, view: View, row: int, temperature: float):
        self.length = int(state.length[row])
        self.text = np.zeros(SLOTS, np.int32)
        self.text[: self.length + 1] = state.tokens[row, : self.length + 1]  # the root included
        self.features = np.array(features_of(self.text))
        self.noise = None if view.noise is None else np.asarray(view.noise)[row]
        self.temperature = temperature

    @functools.cache
    def guess(self, path: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The guessed feature of the last token on the path (the root's, if there is none), and its logits."""
        text, features = self.text.copy(), self.features.copy()
        for drafted, token in enumerate(path):
            text[self.length + 1 + drafted] = token
            features[self.length + drafted] = self.guess(path[:drafted])[0]
        return jax.device_get(next_guess(text[1:], features[:-1], self.length + len(path) - 1))

    def scores(self, path: tuple[int, ...]) -> np.ndarray:
        logits = self.guess(path)[1]
        if self.noise is not None:
            logits = logits + np.float32(self.temperature) * self.noise[len(path)]
        return logits - np.logaddexp.reduce(logits)


def slow_tree(policy: Any, state: DecodeState, view: View, temperature: float) -> Tree:
    """The tree that the policy grows over scores computed afresh for every path."""
    rows = [Afresh(state, view, row, temperature) for row in range(len(PROMPTS))]

    def stacked(paths: list[list[tuple[int, ...]]]) -> jax.Array:
        return jnp.array([[row.scores(path) for path in own] for row, own in zip(rows, paths, strict=True)])

    def extend(above: list[list[tuple[int, ...]]], level: int, tokens: jax.Array, parent_row: jax.Array):
        paths = [
            [(*own[parent], token) for parent, token in zip(parents, new, strict=True)]
            for own, parents, new in zip(above, parent_row.tolist(), tokens.tolist(), strict=True)
        ]
        assert all(len(path) == level for own in paths for path in own)
        return stacked(paths), paths

    roots: list[list[tuple[int, ...]]] = [[()] for _ in rows]
    return policy.grow(view.root, stacked(roots)[:, 0], extend, roots)


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", TREES)
def test_the_tree_is_the_one_of_scores_computed_afresh(name, temperature, state):
    policy = TREES[name]
    view = view_of(state, temperature, policy.depth)
    tree = propose(Eagle(head=HEAD, policy=policy), state.draft, view)
    expected = slow_tree(policy, state, view, temperature)
    np.testing.assert_array_equal(tree.tokens, expected.tokens)
    np.testing.assert_array_equal(tree.parent, expected.parent)
    np.testing.assert_array_equal(tree.valid, expected.valid)
    assert np.asarray(depth_below(tree.ancestors)).max() == policy.depth or name == "dynamic"


def test_noise_changes_the_guesses_unless_uncoupled(state):
    policy = TREES["dynamic"]
    coupled, uncoupled = (Eagle(head=HEAD, policy=policy, coupled=coupled) for coupled in (True, False))
    trees: dict[str, Callable[[], Tree]] = {
        "greedy": lambda: propose(coupled, state.draft, view_of(state, 0.0, policy.depth)),
        "coupled": lambda: propose(coupled, state.draft, view_of(state, 0.8, policy.depth)),
        "uncoupled": lambda: propose(uncoupled, state.draft, view_of(state, 0.8, policy.depth)),
    }
    grown = {name: np.asarray(tree().tokens) for name, tree in trees.items()}
    np.testing.assert_array_equal(grown["uncoupled"], grown["greedy"])
    assert (grown["coupled"] != grown["greedy"]).any()


def test_proposing_leaves_the_state_alone(state):
    drafter = Eagle(head=HEAD, policy=TREES["dynamic"])
    view = view_of(state, 0.0, drafter.policy.depth)
    after = jax.eval_shape(lambda: drafter.propose(TARGET, state.draft, view, GREEDY)[1])
    assert jax.tree.structure(after) == jax.tree.structure(state.draft)
    once, twice = propose(drafter, state.draft, view), propose(drafter, state.draft, view)
    np.testing.assert_array_equal(once.tokens, twice.tokens)


def test_plain_proposes_the_root_alone(state):
    view = view_of(state, 0.0, 0)
    tree, carried = Plain().propose(TARGET, (), view, GREEDY)
    assert Plain().shape == NO_TREE and carried == () == Plain().init(TARGET, 2, SLOTS)
    np.testing.assert_array_equal(tree.tokens, roots(state)[:, None])
    np.testing.assert_array_equal(tree.parent, [[-1], [-1]])
    assert tree.valid.all() and tree.height == 0
