"""Heads that learnt one conversation by heart draft it: what they are trained on is what they do when they draft."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import padded, params_of
from states import steps_by_row
from toy import dflash, pair

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import GREEDY
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.models.any_head import AnyHead
from eagle_jax.training import optimizer
from eagle_jax.training.objective import DFLASH, DFLASH2, DSPARK, Objective
from eagle_jax.training.settings import OptimizerConfig
from eagle_jax.training.update import begin, update, without_params

PROMPT = [3, 17, 5, 22, 9, 1, 14]
NEW, SLOTS, UPDATES = 41, 64, 80


def decoded(drafter: Drafter) -> tuple[list[int], float]:
    """The whole text, and how many tokens a step committed."""
    request = params_of([len(PROMPT)], NEW)
    target = pair()[0]
    fixed = {"mode": GREEDY, "slots": SLOTS, "chunk": 8, "logprobs": False}
    state = compiled_prefill()(target, drafter, request, padded([PROMPT], SLOTS + 8), **fixed)
    state = compiled_advance()(target, drafter, request, state, jnp.int32(10**6), mode=GREEDY)
    text = np.asarray(state.tokens)[0, : len(PROMPT) + NEW].tolist()
    return text, (NEW - 1) / int(steps_by_row(state).sum())  # prefill draws the first


@functools.cache
def conversation() -> list[int]:
    text = decoded(Plain())[0]
    assert len(set(text[len(PROMPT) :])) > 4, "a text that says one thing would be learnt by any head"
    return text


TEXT = dataclasses.replace(DFLASH, distribution_loss="text")
HEADS: dict[str, tuple[dict[str, Any], Objective]] = {
    "dflash": ({}, TEXT),
    "dflash, d_pace": ({}, dataclasses.replace(TEXT, position_weights="d_pace")),
    "dspark": (
        {
            "block_size": 3,
            "sample_from_anchor": True,
            "markov": MarkovConfig(8, "vanilla"),
            "confidence": ConfidenceConfig(with_markov=True),
        },
        DSPARK,
    ),
    "dflash2": (
        {"convolution": ConvolutionConfig(2, 4), "selector": SelectorConfig(8, 4)},
        dataclasses.replace(DFLASH2, distribution_loss="text"),
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", HEADS)
def test_a_conversation_learnt_by_heart_is_drafted(name: str):
    """Nearly all of every block: three tokens, and the target's own. A head that learnt nothing drafts nothing."""
    flags, objective = HEADS[name]
    head, objective = dflash(**flags), dataclasses.replace(objective, anchors=NEW)
    text = np.array(conversation(), np.int32)[None, None]
    answer = (np.arange(text.shape[2]) >= len(PROMPT))[None, None]
    rule = optimizer.make(OptimizerConfig(rate=1e-2, warmup=0, clip="norm", clip_at=1.0), UPDATES)
    state, bare = begin(head, rule, jax.random.key(0)), without_params(head)
    for _ in range(UPDATES):
        state, outcome = update(state, bare, pair()[0], text, answer, rule=rule, objective=objective)

    if outcome.report.selector is not None:
        assert outcome.report.selector.max() < 0.5 and outcome.report.candidates.min() > 0.9

    def length(head: AnyHead) -> float:
        said, mean = decoded(DFlashDrafter(head=head, policy=DynamicTree(4, 2, 1)))
        assert said == conversation()
        return mean

    learnt = dataclasses.replace(head, params=state.params)
    assert length(learnt) > 3.5 and length(head) < 2
