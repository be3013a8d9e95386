"""Markov head, selector and confidence head of a DFlash head against plain numpy: what each token makes of the next."""

import dataclasses
from typing import Any

import edges_by_hand
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_dflash_parity import PLAIN, block_of, head_with, out_by_hand, read_by_hand

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.models.dflash import BlockOutput, DFlash

DSPARK: dict[str, Any] = {"own_embedding": True, "draft_vocab_size": 61, "sample_from_anchor": True}
MODES: dict[str, dict[str, Any]] = {
    "vanilla": DSPARK | {"markov": MarkovConfig(6, "vanilla")},
    "gated": DSPARK | {"markov": MarkovConfig(6, "gated")},
    "rnn": DSPARK | {"markov": MarkovConfig(6, "rnn")},
    "vanilla, draft vocabulary": DSPARK | {"markov": MarkovConfig(6, "vanilla"), "draft_vocab_size": 20},
    "selector": {"selector": SelectorConfig(6, 5), "convolution": ConvolutionConfig(2, 16)},
    "selector, numbers": {"selector": SelectorConfig(6, 5), "output_multiplier": 0.5, "final_logit_softcapping": 0.4},
}
PATHS = np.array([[3, 14, 15, 60, 7], [2, 7, 1, 8, 28], [3, 14, 15, 33, 33]])  # tokens before the slots


def by_hand(head: DFlash, out: np.ndarray, logits: np.ndarray, path: np.ndarray) -> list[dict[int, float]]:
    """What may follow each token of a path, slot by slot."""
    state, found = edges_by_hand.start(head), []
    for h, row, before in zip(out, logits, path, strict=False):
        following, state = edges_by_hand.edges(head, h, row, before, state)
        found.append(following)
    return found


def along(head: DFlash, block: BlockOutput, path: np.ndarray) -> list[dict[int, float]]:
    """The same by the model."""
    tokens, state = jnp.asarray(path, jnp.int32), head.path_state((1, 1), block.out.dtype)
    found = []
    for k in range(head.num_drafted):
        slot = jax.tree.map(lambda rows, k=k: rows[:, k : k + 1], block)
        edges, state = head.edge_logits(slot, tokens[None, k : k + 1], state)
        ids = (
            range(head.draft_vocab_size)
            if head.config.selector is None
            else head.candidates(slot.logits)[0, 0].tolist()
        )
        found.append(dict(zip(ids, np.asarray(edges)[0, 0].tolist(), strict=True)))
    return found


def assert_alike(found: list[dict[int, float]], expected: list[dict[int, float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        scale = max(map(abs, other.values()))
        np.testing.assert_allclose([one[key] for key in other], list(other.values()), atol=3e-5 * scale)


@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_what_follows_each_token_of_a_path(mode: str):
    head = head_with(**MODES[mode])
    block, out = block_of(head), out_by_hand(head)
    logits = read_by_hand(head, out)
    np.testing.assert_allclose(block.out[0], out, atol=2e-5 * np.abs(out).max())
    np.testing.assert_allclose(block.logits[0], logits, atol=2e-5 * np.abs(logits).max())
    for path in PATHS:
        assert_alike(along(head, block, path), by_hand(head, out, logits, path))


@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_the_token_before_matters(mode: str):
    """All of it would pass with a head that is never read: another token before gives other logits."""
    head = head_with(**MODES[mode])
    block = block_of(head)
    first, second = (along(head, block, path) for path in PATHS[:2])
    marginal = np.asarray(block.logits)[0]
    for k, (one, other) in enumerate(zip(first, second, strict=True)):
        assert max(abs(one[key] - other[key]) for key in one) > 0.01
        assert max(abs(one[key] - marginal[k, key]) for key in one) > 0.01


def test_only_an_rnn_remembers_the_path():
    """Two paths that end in the same token: the last path's slot 4 follows another token than the first's."""
    path = PATHS[0].copy()
    path[0] = 50
    for mode in ("vanilla", "gated", "rnn"):
        head = head_with(**MODES[mode])
        block = block_of(head)
        one, other = along(head, block, PATHS[0])[3], along(head, block, path)[3]
        assert (max(abs(one[key] - other[key]) for key in one) > 1e-4) == (mode == "rnn")


def test_slots_are_broadcast_to_rows_of_tokens():
    """As a tree's frontier asks: several tokens before one slot; and all slots at once, as a loss does."""
    for mode in ("gated", "selector"):
        head = head_with(**MODES[mode])
        block, tokens = block_of(head), jnp.asarray(PATHS[:1, : head.num_drafted], jnp.int32)
        state = head.path_state(tokens.shape, block.out.dtype)
        whole, _ = head.edge_logits(block, tokens, state)
        for k in range(head.num_drafted):
            slot = jax.tree.map(lambda rows, k=k: rows[:, k : k + 1], block)
            frontier, _ = head.edge_logits(slot, tokens, state)
            assert frontier.shape == whole.shape
            np.testing.assert_allclose(frontier[0, k], whole[0, k], atol=1e-4)


@pytest.mark.parametrize("with_markov", [False, True])
def test_confidence(with_markov: bool):
    head = head_with(**MODES["gated"], confidence=ConfidenceConfig(with_markov))
    block = block_of(head)
    for path in PATHS[:2]:
        rows = zip(np.asarray(block.out)[0], path, strict=True)
        expected = np.array([edges_by_hand.confidence(head, h, before) for h, before in rows])
        got = head.confidence(block, jnp.asarray(path[None], jnp.int32))[0]
        np.testing.assert_allclose(got, expected, atol=1e-5)
        assert 0.01 < expected.min() and expected.max() < 0.999 and np.ptp(expected) > 0.05


def test_new_convolutions_change_nothing():
    convolved = DFlash.init(dataclasses.replace(PLAIN, convolution=ConvolutionConfig(2, 16)), jax.random.key(3))
    params = {
        name: {key: value for key, value in node.items() if not key.endswith("_conv")} if "layers" in name else node
        for name, node in convolved.params.items()
    }
    plain = DFlash(params=params, config=PLAIN)
    np.testing.assert_allclose(block_of(convolved).logits, block_of(plain).logits, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"markov": MarkovConfig(6, "vanilla"), "selector": SelectorConfig(6, 5)}, "at most one"),
        ({"confidence": ConfidenceConfig(with_markov=True)}, "without a Markov head"),
        ({"selector": SelectorConfig(6, 62)}, "no more than the 61 tokens"),
        ({"convolution": ConvolutionConfig(2, 5)}, "group_size=5 does not divide the width 32"),
    ],
)
def test_parts_that_cannot_be_together(changes: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(PLAIN, **changes)


def test_sizes_that_cannot_be():
    for made in (
        lambda: MarkovConfig(0, "vanilla"),
        lambda: SelectorConfig(6, 0),
        lambda: ConvolutionConfig(0, 16),
        lambda: ConvolutionConfig(2, -1),
    ):
        with pytest.raises(ValueError, match="expected at least 1"):
            made()
    with pytest.raises(ValueError, match="kind='lstm' of a Markov head; expected one of vanilla, gated, rnn"):
        MarkovConfig(6, "lstm")
