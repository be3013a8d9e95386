"""Whole greedy cycles of EAGLE-1, EAGLE-2 and EAGLE-3 against the published method written anew in numpy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published import Path, Published

from eagle_jax.decoding import sampling
from eagle_jax.decoding.decode import compiled_advance, compiled_prefill
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree
from eagle_jax.decoding.sampling import GREEDY
from eagle_jax.decoding.state import Request
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import View
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.testing import synthetic_head3, synthetic_pair

TARGET, HEAD = synthetic_pair(strength=0.3, error=0.15)
PROMPT, SLOTS, CYCLES = [3, 1, 4, 1, 5, 9, 2, 6], 64, 4


def flagged(**flags: bool) -> Eagle:
    """A head whose norms and `fc` weigh enough that each of its flags changes the trees."""
    head = synthetic_head3(TARGET, error=0.15, **flags)

    def bent(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if path[-1].key != "scale":
            return leaf
        return leaf * jax.random.uniform(jax.random.key(len(path)), leaf.shape, minval=0.3, maxval=1.7)

    params = jax.tree_util.tree_map_with_path(bent, head.params)
    params["fc"] = {"weight": 30 * params["fc"]["weight"]}
    return Eagle(head=dataclasses.replace(head, params=params), policy=DynamicTree(14, 3, 4), sharpness=1.0)


DRAFTERS = {
    "EAGLE-1": Eagle(head=HEAD, policy=EAGLE1_TREE, sharpness=1.0),
    "EAGLE-2": Eagle(head=HEAD, policy=DynamicTree(14, 3, 4), sharpness=1.0),
    "EAGLE-3": Eagle(head=synthetic_head3(TARGET, error=0.15), policy=DynamicTree(14, 3, 4), sharpness=1.0),
    "EAGLE-3, trimmed": Eagle(
        head=synthetic_head3(TARGET, error=0.15, draft_vocab_size=45), policy=DynamicTree(14, 3, 4), sharpness=1.0
    ),
    "EAGLE-3.1": flagged(fc_norm=True, norm_output=True),
    "EAGLE-3, normed taps and residual": flagged(norm_before_fc=True, norm_before_residual=True),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_trees_and_accepted_paths_are_the_published_ones(name):
    drafter = DRAFTERS[name]
    accepted = []
    for text, tree, new in cycles(drafter):
        published = Published(TARGET, drafter.head, text)
        if isinstance(drafter.policy, DynamicTree):
            expected = published.dynamic_tree(drafter.policy.nodes, drafter.policy.depth_steps, drafter.policy.top_k)
        else:
            expected = published.static_tree()
        assert paths_of(tree) == expected
        assert new == published.accepted(expected)
        accepted.append(len(new) - 1)
    assert len(accepted) == CYCLES and sum(accepted) > 0, "no draft was accepted: half of the test saw nothing"


def cycles(drafter: Eagle) -> list[tuple[Path, Tree, Path]]:
    """Of each cycle the text it begins with, the root at its end; the tree; and the tokens that it adds."""
    lengths = jnp.array([len(PROMPT)])
    tokens = jnp.zeros((1, SLOTS + 8), jnp.int32).at[0, : len(PROMPT)].set(jnp.array(PROMPT))
    settings = sampling.Settings(
        temperature=jnp.zeros(1), top_k=jnp.zeros(1, jnp.int32), top_p=jnp.ones(1), min_p=jnp.zeros(1),
        key=sampling.request_keys([0], [0]),
    )  # fmt: skip
    request = Request(settings=settings, prompt_length=lengths, limit=lengths + 40, stop_ids=jnp.array([-1]))

    @jax.jit
    def propose(draft, text, length):
        view = View(tokens=text, length=length, noise=None, settings=settings)
        return drafter.propose(TARGET, draft, view, GREEDY)[0]

    state = compiled_prefill()(TARGET, drafter, request, tokens, mode=GREEDY, slots=SLOTS, chunk=16, logprobs=False)
    seen = []
    for cycle in range(1, CYCLES + 1):
        text = known(state)
        tree = propose(state.draft, state.tokens, state.length)
        state = compiled_advance()(TARGET, drafter, request, state, jnp.int32(cycle), mode=GREEDY)
        seen.append((text, tree, known(state)[len(text) :]))
    return seen


def known(state) -> Path:
    return tuple(np.asarray(state.tokens)[0, : int(state.length[0]) + 1].tolist())


def paths_of(tree: Tree) -> list[Path]:
    """Tokens from below the root to each node, in node order."""
    paths: list[Path] = [()]
    assert np.asarray(tree.valid).all() and int(tree.parent[0, 0]) == -1
    for token, parent in zip(np.asarray(tree.tokens)[0, 1:], np.asarray(tree.parent)[0, 1:], strict=True):
        paths.append((*paths[parent], int(token)))
    return paths
