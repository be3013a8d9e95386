"""What the DFlash drafter keeps and proposes: its state is a fresh prefill's, its trees are those of the marginals."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import settings_of
from in_flight import after_steps, prefilled, view_of
from states import steps_by_row

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree, StaticTree, TreePolicy
from eagle_jax.decoding.sampling import GREEDY, Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import View
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.drafters.guided import grow, grow_by_depth
from eagle_jax.models.dflash import DFlash
from eagle_jax.testing import synthetic_dflash, synthetic_pair

TARGET, _ = synthetic_pair(strength=0.3)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8], [2, 7, 18]]
SAMPLED = Sampling(sampled=True, filtered=False)
SLOTS, BLOCK = 80, 4
CHAIN = DynamicTree(BLOCK, BLOCK - 2, 1)


@functools.cache
def head(**flags: Any) -> DFlash:
    return synthetic_dflash(TARGET, block_size=BLOCK, **flags)


FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dspark": {"markov": MarkovConfig(8, "rnn"), "confidence": ConfidenceConfig(True), "sample_from_anchor": True},
    "dflash 2": {"selector": SelectorConfig(8, 5), "convolution": ConvolutionConfig(2, 16)},
}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("policy", "flags"),
    [(CHAIN, "plain"), (DynamicTree(9, 2, 3), "plain"), (CHAIN, "dspark"), (DynamicTree(9, 2, 3), "dflash 2")],
)
def test_the_state_is_a_fresh_prefills(policy: TreePolicy, flags: str):
    """After any step, whatever was accepted; and whatever chunks the prompt came in."""
    drafter = DFlashDrafter(head=head(**FLAGS[flags]), policy=policy)
    state = after_steps(TARGET, drafter, PROMPTS, 5)
    committed = np.asarray(state.length) - [len(prompt) for prompt in PROMPTS]
    assert (committed > steps_by_row(state)).any(), "no draft was accepted: nothing was observed"
    texts = [np.asarray(state.tokens)[row, : int(state.length[row])].tolist() for row in range(len(PROMPTS))]
    _, fresh = prefilled(TARGET, drafter, texts, chunk=16, slots=SLOTS)
    np.testing.assert_array_equal(state.draft.length, fresh.draft.length)
    np.testing.assert_array_equal(state.draft.length, state.length)
    for row, text in enumerate(texts):
        for got, expected in zip((*state.draft.k, *state.draft.v), (*fresh.draft.k, *fresh.draft.v), strict=True):
            rows = got[row, :, : len(text)], expected[row, :, : len(text)]
            np.testing.assert_allclose(*rows, atol=2e-4 * float(jnp.abs(rows[1]).max()))


@jax.jit
def propose(drafter: DFlashDrafter, draft: Any, view: View) -> Tree:
    mode = GREEDY if view.noise is None else SAMPLED
    return drafter.propose(TARGET, draft, view, mode)[0]


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("trimmed", [False, True], ids=["whole vocabulary", "a part of it"])
def test_a_chain_is_the_best_token_of_each_slot(temperature: float, trimmed: bool):
    """With the target's noise of its position added, as everywhere."""
    drafts = head()
    if trimmed:
        ids, config = jnp.arange(3, 43, dtype=jnp.int32), dataclasses.replace(drafts.config, draft_vocab_size=40)
        weight = TARGET.params["lm_head"]["weight"][3:43]
        drafts = DFlash(params=drafts.params | {"lm_head": {"weight": weight}}, config=config, vocabulary=ids)
    drafter = DFlashDrafter(head=drafts, policy=CHAIN)
    state = after_steps(TARGET, drafter, PROMPTS, 2)
    view = view_of(state, temperature, CHAIN.depth)
    logits = np.asarray(drafts.draft(TARGET, view.root, view.length, state.draft, CHAIN.depth).logits)
    if view.noise is not None:
        logits = logits + np.float32(temperature) * np.asarray(drafts.drafted_part(view.noise[:, : CHAIN.depth]))
    tree = propose(drafter, state.draft, view)
    np.testing.assert_array_equal(tree.tokens[:, 0], view.root)
    np.testing.assert_array_equal(tree.tokens[:, 1:], np.argmax(logits, axis=-1) + (3 if trimmed else 0))
    np.testing.assert_array_equal(tree.parent, [[-1, 0, 1, 2]] * 2)


def test_a_tree_has_the_likeliest_paths_of_independent_slots():
    """Best first by the product of the slots' probabilities (JetSpec): here against all paths there are."""
    drafter = DFlashDrafter(head=head(), policy=DynamicTree(12, 2, 11, 11))
    state = after_steps(TARGET, drafter, PROMPTS, 2)
    view = view_of(state, 0.0, 3)
    tree = jax.device_get(propose(drafter, state.draft, view))
    logits = drafter.head.draft(TARGET, view.root, view.length, state.draft, 3).logits
    for row, slots in enumerate(np.asarray(jax.nn.log_softmax(logits, axis=-1))):
        paths = {(): 0.0}
        for slot in slots:
            deepest = max(map(len, paths))
            ends = [path for path in paths if len(path) == deepest]
            best = np.argsort(-slot)[:12].tolist()
            paths |= {(*path, token): paths[path] + slot[token] for path in ends for token in best}
        expected = sorted(paths, key=lambda path: -paths[path])[:12]
        tokens, parent = tree.tokens[row], tree.parent[row]
        found = {0: ()}
        for node in range(1, 12):
            found[node] = (*found[int(parent[node])], int(tokens[node]))
        assert set(found.values()) == set(expected)


TREES = [
    DynamicTree(12, 2, 6),
    DynamicTree(30, 2, 6, 29),
    DynamicTree(4, 1, 10, best_first=True),
    EAGLE1_TREE,
    DynamicTree.chain(4, 0.001),
    StaticTree((-1, 0)),
]


@pytest.mark.matrix
@pytest.mark.parametrize("policy", TREES, ids=str)
def test_a_tree_over_ranks_is_the_one_over_the_vocabulary(policy: TreePolicy):
    """Ties, and a slot without a distribution, too."""
    logits = jax.random.normal(jax.random.key(3), (2, policy.depth, 61)).at[:, :, 40:50].set(1.5)
    logits = logits.at[1, -1].set(jnp.nan)
    tokens = jnp.array([[3, 4], [5, 6]], jnp.int32)
    view = View(tokens=tokens, length=jnp.ones(2, jnp.int32), noise=None, settings=settings_of(2))

    def scores(depth: int) -> Scores:
        return Scores(logits[:, depth : depth + 1])

    def extend(carry: None, level: int, tokens: jax.Array, parent_row: jax.Array) -> tuple[Scores, None]:
        return Scores(jnp.broadcast_to(logits[:, level : level + 1], (*tokens.shape, 61))), None

    got = jax.jit(lambda: grow_by_depth(policy, view, scores))()
    expected = jax.jit(lambda: grow(policy, view, scores(0)[:, 0], extend, None))()
    valid = np.asarray(expected.valid)
    np.testing.assert_array_equal(got.valid, valid)
    np.testing.assert_array_equal(got.parent, expected.parent)
    np.testing.assert_array_equal(np.where(valid, got.tokens, -1), np.where(valid, expected.tokens, -1))
    assert valid[0].sum() > 1


@pytest.mark.parametrize("policy", [DynamicTree(5, 3, 1), DynamicTree.chain(5, 0.1)], ids=["chain", "sure chain"])
def test_a_tree_that_is_deeper_than_the_block(policy: TreePolicy):
    with pytest.raises(ValueError, match="depth 4 for a DFlash head whose block of 4 drafts 3 tokens"):
        DFlashDrafter(head=head(), policy=policy)
    anchored = dataclasses.replace(head(), config=dataclasses.replace(head().config, sample_from_anchor=True))
    assert DFlashDrafter(head=anchored, policy=policy).shape.depth == 4


def test_a_tree_that_is_wider_than_the_vocabulary():
    with pytest.raises(ValueError, match="choose a narrower tree"):
        DFlashDrafter(head=head(), policy=DynamicTree(80, 1, 62))


def test_a_trained_head_drafts_most_of_its_block():
    """Tokens a step, the target's own included; at most the block's 4."""
    state = after_steps(TARGET, DFlashDrafter(head=head(), policy=CHAIN), PROMPTS, 10)
    committed = np.asarray(state.length) - [len(prompt) for prompt in PROMPTS]
    assert (committed / steps_by_row(state)).mean() > 3
