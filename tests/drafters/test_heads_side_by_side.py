"""What Medusa and Hydra propose, against their heads run anew on every drafted path."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import settings_of

from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import DynamicTree, StaticTree, TreePolicy
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import CommittedRows, View
from eagle_jax.drafters.hydra import HydraDrafter
from eagle_jax.drafters.medusa import MEDUSA_TREE, MedusaDrafter
from eagle_jax.models.heads import Heads, Hydra
from eagle_jax.testing import TINY, synthetic_hydra, synthetic_medusa, synthetic_pair

TARGET, _ = synthetic_pair(strength=0.3)
DRAFTERS = {
    "medusa": MedusaDrafter(synthetic_medusa(TARGET), StaticTree((-1, 0, 0, 0, 1, 1, 2, 4))),
    "hydra++": HydraDrafter(synthetic_hydra(TARGET, prefix=True, error=0.5), DynamicTree(9, 2, 3)),
}
TEXT = np.random.default_rng(0).integers(0, TINY.vocab_size, (2, 12)).astype(np.int32)
LENGTH = np.array([10, 7], np.int32)  # the roots: what lies behind them is not known


def view_of(temperature: float) -> View:
    settings = settings_of(2, temperature, seeds=[5, 6])
    positions = LENGTH[:, None] + 1 + np.arange(4, dtype=np.int32)[None]
    noise = sampling.noise(settings, jnp.asarray(positions), TINY.vocab_size) if temperature else None
    return View(tokens=jnp.asarray(TEXT), length=jnp.asarray(LENGTH), noise=noise, settings=settings)


@jax.jit
def propose(drafter: Any, view: View) -> Tree:
    """The tree after the text was read in two stretches, the second of other lengths in each row."""
    hidden, _ = TARGET(view.tokens)
    state = drafter.init(TARGET, 2, 16)
    start = jnp.zeros(2, jnp.int32)
    for count in (jnp.array([6, 6], jnp.int32), view.length - 6):
        rows = start[:, None] + jnp.arange(6, dtype=jnp.int32)[None]
        read = CommittedRows(
            start=start,
            count=count,
            tokens=jnp.take_along_axis(view.tokens, rows, axis=1),
            following=jnp.take_along_axis(view.tokens, jnp.minimum(rows + 1, 11), axis=1),
            hidden=jnp.take_along_axis(hidden, rows[:, :, None], axis=1),
            taps=(),
        )
        state, start = drafter.observe(TARGET, state, read), start + count
    mode = Sampling(sampled=view.noise is not None, filtered=False)
    return drafter.propose(TARGET, state, view, mode)[0]


@jax.jit
def text_of(head: Heads, tokens: jax.Array) -> jax.Array:
    """What the heads read of each row's text before its root; no cache, no stretches."""
    hidden, _ = TARGET(tokens)
    if isinstance(head, Hydra):
        hidden = head.over_text(hidden, jnp.zeros_like(hidden))[0][..., : TINY.hidden_size]
    return hidden[jnp.arange(2), LENGTH - 1]


@functools.partial(jax.jit, static_argnames="level")
def logits_of(head: Heads, text: jax.Array, paths: jax.Array, *, level: int) -> jax.Array:
    """Logits after paths `[b f level + 1]` of tokens, the root first."""
    batch, count, _ = paths.shape
    read = jnp.broadcast_to(text[:, None], (batch, count, text.shape[1]))
    if isinstance(head, Hydra):
        embedded = TARGET.embed(paths.reshape(batch, -1)).reshape(batch, count, -1)
        read = jnp.concatenate([read, embedded], axis=-1)
    return head.logits(level, read)


def slow_tree(head: Heads, policy: TreePolicy, view: View, temperature: float) -> Tree:
    """The tree grown over logits of whole paths."""
    text = text_of(head, view.tokens)

    def scores(paths: list[list[list[int]]]) -> jax.Array:
        level = len(paths[0][0]) - 1
        logits = logits_of(head, text, jnp.asarray(paths, jnp.int32), level=level)
        if view.noise is not None:
            logits = logits + temperature * view.noise[:, level : level + 1]
        return jax.nn.log_softmax(logits)

    def extend(above: list[list[list[int]]], level: int, tokens: jax.Array, parent_row: jax.Array) -> Any:
        pairs = zip(above, parent_row.tolist(), tokens.tolist(), strict=True)
        paths = [[[*own[p], token] for p, token in zip(parents, new, strict=True)] for own, parents, new in pairs]
        return scores(paths), paths

    roots = [[[root]] for root in view.root.tolist()]
    return policy.grow(view.root, scores(roots)[:, 0], extend, roots)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafts_are_the_best_of_each_paths_own_scores(kind: str):
    drafter = DRAFTERS[kind]
    for temperature in (0.0, 0.8):
        view = view_of(temperature)
        tree, expected = propose(drafter, view), slow_tree(drafter.head, drafter.policy, view, temperature)
        np.testing.assert_array_equal(tree.tokens, expected.tokens)
        np.testing.assert_array_equal(tree.parent, expected.parent)
        assert bool(tree.valid.all()) and bool(expected.valid.all())


def test_the_published_tree():
    """63 drafted nodes: ten first guesses, and deeper where they are better."""
    levels = [0] * MEDUSA_TREE.nodes
    for node, parent in enumerate(MEDUSA_TREE.parents[1:], start=1):
        levels[node] = levels[parent] + 1
    assert np.bincount(levels).tolist() == [1, 10, 28, 23, 2]
    assert MEDUSA_TREE.parents[1:11] == (0,) * 10 and MEDUSA_TREE.parents[11:28] == (1,) * 10 + (2,) * 7


@pytest.mark.parametrize("kind", DRAFTERS)
def test_trees_deeper_than_there_are_heads(kind: str):
    drafter = DRAFTERS[kind]
    with pytest.raises(ValueError, match="a tree of depth 4 for 3 (Medusa|Hydra) heads"):
        type(drafter)(drafter.head, MEDUSA_TREE)
