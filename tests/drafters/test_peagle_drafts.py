"""What the P-EAGLE drafter keeps and proposes: its state is a fresh prefill's, its trees are those of the marginals."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_flight import after_steps, view_of
from states import steps_by_row

from eagle_jax.decoding.policy import DynamicTree, TreePolicy
from eagle_jax.decoding.sampling import GREEDY, Sampling
from eagle_jax.drafters.base import CommittedRows
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.models.eagle3 import Head3
from eagle_jax.testing import synthetic_head3, synthetic_pair, synthetic_peagle

TARGET, _ = synthetic_pair(strength=0.3)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8], [2, 7, 18]]
SAMPLED = Sampling(sampled=True, filtered=False)
SLOTS = 80
CHAIN = DynamicTree(4, 2, 1)


@functools.cache
def head() -> Head3:
    """Trained when the first test asks for it."""
    return synthetic_peagle(TARGET)


@pytest.mark.proof
def test_the_state_is_a_fresh_prefills():
    """After any step, whatever was accepted, and whatever chunks the prompt came in: of mask rows nothing is kept."""
    drafter = PEagle(head=head(), policy=DynamicTree(9, 2, 3))
    state = after_steps(TARGET, drafter, PROMPTS, 5)
    committed = np.asarray(state.length) - [len(prompt) for prompt in PROMPTS]
    assert (committed > steps_by_row(state)).any(), "no draft was accepted: nothing was observed"
    texts = [np.asarray(state.tokens)[row, : int(state.length[row]) + 1].tolist() for row in range(len(PROMPTS))]
    fresh = read_again(drafter, texts)
    np.testing.assert_array_equal(state.draft.cache.length, state.length)
    for row, text in enumerate(texts):
        kept = (*state.draft.cache.k, *state.draft.cache.v), (*fresh[row].cache.k, *fresh[row].cache.v)
        for got, expected in zip(*kept, strict=True):
            rows = got[row, :, : len(text) - 1], expected[0, :, : len(text) - 1]
            np.testing.assert_allclose(*rows, atol=2e-4 * float(jnp.abs(rows[1]).max()))
        np.testing.assert_allclose(state.draft.guess[row], fresh[row].guess[0], atol=2e-4)


def read_again(drafter: PEagle, texts: list[list[int]]) -> list[Any]:
    """The drafter's state after each text alone, read at once; its last token is the root."""
    states = []
    for text in texts:
        tokens = jnp.asarray([text], jnp.int32)
        output = TARGET.causal(tokens[:, :-1], drafter.taps)
        observed = CommittedRows(
            start=jnp.zeros(1, jnp.int32),
            count=jnp.full(1, len(text) - 1, jnp.int32),
            tokens=tokens[:, :-1],
            following=tokens[:, 1:],
            hidden=output.hidden,
            taps=output.taps,
        )
        states.append(jax.jit(drafter.observe)(TARGET, drafter.init(TARGET, 1, SLOTS), observed))
    return states


def part_of(head: Head3) -> Head3:
    """The head with a draft vocabulary."""
    ids, config = jnp.arange(3, 43, dtype=jnp.int32), dataclasses.replace(head.config, draft_vocab_size=40)
    params = head.params | {"lm_head": {"weight": head.params["lm_head"]["weight"][3:43]}}
    return Head3(params=params, config=config, vocabulary=ids)


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("trimmed", [False, True], ids=["whole vocabulary", "a part of it"])
def test_a_chain_is_the_best_token_of_each_row(temperature: float, trimmed: bool):
    """With the target's noise of its position added, as everywhere."""
    drafter = PEagle(head=part_of(head()) if trimmed else head(), policy=CHAIN)
    state = after_steps(TARGET, drafter, PROMPTS, 2)
    view = view_of(state, temperature, CHAIN.depth)
    mode = SAMPLED if temperature else GREEDY
    drafts = state.draft.guess, view.length, state.draft.cache
    logits = np.asarray(jax.jit(lambda *args: drafter.head.draft(TARGET, *args, CHAIN.depth))(*drafts))
    if view.noise is not None:
        logits = logits + np.float32(temperature) * np.asarray(drafter.head.drafted_part(view.noise[:, : CHAIN.depth]))
    tree = jax.jit(lambda draft, view: drafter.propose(TARGET, draft, view, mode)[0])(state.draft, view)
    np.testing.assert_array_equal(tree.tokens[:, 0], view.root)
    np.testing.assert_array_equal(tree.tokens[:, 1:], np.argmax(logits, axis=-1) + (3 if trimmed else 0))
    np.testing.assert_array_equal(tree.parent, [[-1, 0, 1, 2]] * 2)


@pytest.mark.parametrize("policy", [DynamicTree(5, 3, 1), DynamicTree.chain(5, 0.1)], ids=["chain", "sure chain"])
def test_a_tree_that_is_deeper_than_a_pass(policy: TreePolicy):
    with pytest.raises(ValueError, match="depth 4 for a P-EAGLE head that drafts 3 tokens in a pass"):
        PEagle(head=head(), policy=policy)


def test_heads_that_it_cannot_have():
    with pytest.raises(ValueError, match="without mask rows for P-EAGLE; draft with Eagle"):
        PEagle(head=synthetic_head3(TARGET), policy=CHAIN)
    with pytest.raises(ValueError, match="choose a narrower tree"):
        PEagle(head=head(), policy=DynamicTree(80, 1, 62))


def test_a_trained_head_drafts_most_of_its_pass():
    """Tokens a step, the target's own included, at most 4; texts become longer than those it learnt."""
    state = after_steps(TARGET, PEagle(head=head(), policy=CHAIN), PROMPTS, 10)
    committed = np.asarray(state.length) - [len(prompt) for prompt in PROMPTS]
    assert (committed / steps_by_row(state)).mean() > 2.5
