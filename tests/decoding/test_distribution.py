"""The text that is drafted and checked follows the target's own distribution, over the tokens of one step together."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tree_reference
from batches import padded, params_of
from states import steps_by_row

from eagle_jax.configs.dflash import ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Drafter
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.loop import decode
from eagle_jax.loop.decode import advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY, synthetic_dflash, synthetic_pair, synthetic_peagle

VOCAB, NEW, ROWS, BATCHES = 8, 4, 4096, 8
MODE = Sampling(sampled=True, filtered=True)
PROMPT = [3, 1, 4, 1, 5]
WARP = {"temperature": 0.8, "top_k": 7, "top_p": 0.95, "min_p": 0.0}
TARGET, HEAD = synthetic_pair(dataclasses.replace(TINY, vocab_size=VOCAB), strength=0.3, error=0.1)
TARGET = dataclasses.replace(
    TARGET, params=TARGET.params | {"lm_head": {"weight": TARGET.params["lm_head"]["weight"] / 4}}
)
TREE = DynamicTree(8, 2, 3)
DFLASH2 = {"selector": SelectorConfig(4, 4), "convolution": ConvolutionConfig(2, 16)}
DRAFTERS = {
    "eagle": lambda: Eagle(head=HEAD, policy=TREE),
    "eagle, noise of its own": lambda: Eagle(head=HEAD, policy=TREE, coupled=False),
    "peagle": lambda: PEagle(head=synthetic_peagle(TARGET), policy=TREE),
    "dflash": lambda: DFlashDrafter(head=synthetic_dflash(TARGET), policy=TREE),
    "dspark": lambda: DFlashDrafter(
        head=synthetic_dflash(TARGET, markov=MarkovConfig(4, "vanilla"), sample_from_anchor=True), policy=TREE
    ),
    "dflash 2": lambda: DFlashDrafter(head=synthetic_dflash(TARGET, **DFLASH2), policy=TREE),
}


@functools.cache
def distribution() -> np.ndarray:
    """Probability of each text of `NEW` tokens, from whole passes of the target: `[8, 8, 8, 8]`."""
    texts = np.array(list(itertools.product(range(VOCAB), repeat=NEW)))
    whole = np.concatenate([np.tile(PROMPT, (len(texts), 1)), texts], axis=1)
    logits = np.asarray(TARGET(jnp.asarray(whole, jnp.int32))[1])[:, len(PROMPT) - 1 : -1]
    of_each = np.array([[tree_reference.softmax(tree_reference.warp(row, **WARP)) for row in text] for text in logits])
    return np.take_along_axis(of_each, texts[:, :, None], axis=2)[:, :, 0].prod(1)


def p_value(drafter: Drafter) -> float:
    """Chi-square of the texts of many seeds against the distribution; texts too rare to count are one class."""
    counts, steps = np.zeros(VOCAB**NEW, int), 0
    # a new function: jit would find the old trace of patched code
    program = jax.jit(lambda *args: advance(*args, jnp.int32(100), mode=MODE))
    for batch in range(BATCHES):
        texts, taken = decoded(drafter, range(batch * ROWS, (batch + 1) * ROWS), program)
        counts += np.bincount(texts @ VOCAB ** np.arange(NEW)[::-1], minlength=VOCAB**NEW)
        steps += taken
    assert steps < 0.75 * (NEW - 1) * ROWS * BATCHES, "few tokens were accepted: nothing was tested"
    expected = distribution() * ROWS * BATCHES
    if counts[expected == 0].any():
        return 0.0
    common = expected >= 10
    assert common.sum() > 200
    rest = [values[~common].sum() for values in (counts, expected)]
    return float(scipy.stats.chisquare([*counts[common], rest[0]], [*expected[common], rest[1]]).pvalue)


def decoded(drafter: Drafter, seeds: range, program: Any) -> tuple[np.ndarray, int]:
    """The answers to one prompt, `[rows, NEW]`, and the steps that they took."""

    length, prompts = len(PROMPT), [PROMPT] * len(seeds)
    request = params_of([length] * len(seeds), NEW, seeds=seeds, **WARP)
    start = {"mode": MODE, "slots": 16, "chunk": 8, "logprobs": False}
    state = compiled_prefill()(TARGET, drafter, request, padded(prompts, 32), **start)
    state = program(TARGET, drafter, request, state)
    return np.asarray(state.tokens)[:, length : length + NEW], int(steps_by_row(state).sum())


@pytest.mark.proof
@pytest.mark.parametrize("name", DRAFTERS)
def test_drafted_texts_follow_the_targets_distribution(name: str):
    assert p_value(DRAFTERS[name]()) > 0.001


@pytest.mark.proof
@pytest.mark.parametrize("mistake", ["one noise for all tokens of a step", "the draft's favourite counts for more"])
def test_the_test_sees_wrong_verifiers(mistake: str, monkeypatch: pytest.MonkeyPatch):
    """With the first mistake each token alone is still drawn rightly: only texts as wholes show it."""
    if mistake.startswith("one noise"):
        monkeypatch.setattr(sampling, "at_depth", lambda noise, depth: noise[:, jnp.zeros_like(depth[0])])
    else:
        right = decode.verify_tree

        def wrong(target: LM, drafter: Drafter, state: Any, tree: Any, ancestors: Any) -> Any:
            rows, output, logits = right(target, drafter, state, tree, ancestors)
            favourite = jax.nn.one_hot(tree.tokens[:, 1:2], VOCAB, dtype=jnp.float32) * (
                tree.parent[:, 1:2, None] == 0
            ).astype(jnp.float32)
            return rows, output, logits.at[:, :1].add(0.3 * favourite)

        monkeypatch.setattr(decode, "verify_tree", wrong)
    assert p_value(DRAFTERS["eagle"]()) < 1e-6
