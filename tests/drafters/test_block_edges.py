"""Trees of DSpark's and DFlash 2's heads, whose guesses depend on the token before, against slow searches in numpy."""

import dataclasses
from typing import Any

import edges_by_hand
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import settings_of

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.decoding import sampling
from eagle_jax.decoding.automata import Guide
from eagle_jax.decoding.policy import DynamicTree, TreePolicy
from eagle_jax.decoding.processor import LogitsAdjustment
from eagle_jax.decoding.sampling import GREEDY, Sampling
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import View
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.models.cache import Cache
from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.requests.processing import LogitsOptions
from eagle_jax.scheduling.logits_arrays import processor_of
from eagle_jax.structured.regex_automaton import regex_automaton
from eagle_jax.structured.token_automaton import token_automaton
from eagle_jax.testing import TINY, synthetic_pair

TARGET, _ = synthetic_pair(strength=0.3)
SAMPLED = Sampling(sampled=True, filtered=False)
PART = tuple(range(3, 61, 2))  # a draft vocabulary: its ids are not the target's
LAYERS = dataclasses.replace(TINY, num_hidden_layers=1)
DSPARK: dict[str, Any] = {"sample_from_anchor": True, "block_size": 4, "confidence": ConfidenceConfig(True)}
DFLASH2: dict[str, Any] = {"block_size": 5, "selector": SelectorConfig(6, 6), "convolution": ConvolutionConfig(2, 16)}
KINDS: dict[str, dict[str, Any]] = {
    "vanilla": DSPARK | {"markov": MarkovConfig(6, "vanilla")},
    "gated, draft vocabulary": DSPARK | {"markov": MarkovConfig(6, "gated"), "draft_vocab_size": len(PART)},
    "rnn": DSPARK | {"markov": MarkovConfig(6, "rnn")},
    "selector": DFLASH2,
    "selector, draft vocabulary": DFLASH2 | {"draft_vocab_size": len(PART)},
}
CHAIN = DynamicTree(5, 3, 1)
TEXTS = np.random.default_rng(4).integers(0, TINY.vocab_size, (2, 12))  # of which the roots are the last tokens
ROOTS = np.array([11, 7])


def head_of(kind: str) -> DFlash:
    """A random head whose slots' logits and edges weigh about as much."""
    sizes = {"layers": LAYERS, "taps": (0, 1, 2), "target_hidden_size": 32, "mask_token_id": 60}
    config = DFlashConfig(**sizes, **KINDS[kind])
    shapes = jax.eval_shape(lambda: DFlash.init(config, jax.random.key(0))).params
    draw = np.random.default_rng(3).standard_normal
    params = jax.tree.map(lambda leaf: jnp.asarray(0.4 * draw(leaf.shape, np.float32) + (leaf.ndim == 1)), shapes)
    if config.selector is None:
        params["markov_head"]["markov_w2"]["weight"] *= 20
    else:
        params["candidate_selector"]["successor_codebook"] *= 5
    part = config.draft_vocab_size is not None
    return DFlash(params=params, config=config, vocabulary=jnp.asarray(PART, jnp.int32) if part else None)


def cache_of(head: DFlash) -> Cache:
    tokens = jnp.asarray(TEXTS, jnp.int32)
    taps, cache = TARGET.causal(tokens, head.taps).taps, head.empty_cache(2, 16)
    rows = jnp.broadcast_to(jnp.arange(12, dtype=jnp.int32)[None], (2, 12))
    return cache.write(head.context(taps, rows, cache), jnp.zeros(2, jnp.int32), jnp.asarray(ROOTS, jnp.int32))


def view_of(temperature: float = 0.0, **changes: Any) -> View:
    settings = settings_of(2, temperature, seeds=[5, 6])
    length = jnp.asarray(ROOTS, jnp.int32)
    noise = sampling.noise(settings, length[:, None] + 1 + jnp.arange(5, dtype=jnp.int32)[None], TINY.vocab_size)
    return View(
        tokens=jnp.asarray(TEXTS, jnp.int32),
        length=length,
        noise=noise if temperature else None,
        settings=settings,
        **changes,
    )


@jax.jit
def proposed(drafter: DFlashDrafter, cache: Cache, view: View) -> tuple[Tree, BlockOutput]:
    mode = GREEDY if view.noise is None else SAMPLED
    slots = drafter.head.draft(TARGET, view.root, view.length, cache, drafter.policy.depth)
    return drafter.propose(TARGET, cache, view, mode)[0], slots


def drafted(drafter: DFlashDrafter, view: View) -> tuple[Tree, BlockOutput]:
    return jax.device_get(proposed(drafter, cache_of(drafter.head), view))


def ids_of(head: DFlash) -> list[int]:
    return list(range(TINY.vocab_size)) if head.vocabulary is None else list(PART)


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_is_a_walk_from_left_to_right(kind: str, temperature: float):
    """The best token below the root, then the best below that token, with the noise of each position."""
    head, view = head_of(kind), view_of(temperature)
    tree, slots = drafted(DFlashDrafter(head=head, policy=CHAIN), view)
    ids, marginal = ids_of(head), []
    for row in range(2):
        before, state, walked = int(TEXTS[row, ROOTS[row]]), edges_by_hand.start(head), []
        for k in range(4):
            noise = 0.0 if view.noise is None else temperature * np.asarray(view.noise)[row, k, ids]
            logits = slots.logits[row, k]
            following, state = edges_by_hand.edges(head, slots.out[row, k], logits, before, state, noise)
            before = ids[max(following, key=lambda token, following=following: following[token])]
            walked.append(before)
            marginal.append(ids[int(np.argmax(logits + noise))] == before)
        assert tree.tokens[row].tolist() == [TEXTS[row, ROOTS[row]], *walked]
    assert tree.valid.all() and tree.parent.tolist() == [[-1, 0, 1, 2, 3]] * 2
    assert not all(marginal), "the same chain as without the head that was tested"


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["rnn", "gated, draft vocabulary", "selector", "selector, draft vocabulary"])
def test_a_tree_has_the_likeliest_paths(kind: str):
    """Best first by the product of conditional probabilities, against all paths that there are."""
    head = head_of(kind)
    tree, slots = drafted(DFlashDrafter(head=head, policy=DynamicTree(7, 2, 6)), view_of())
    ids = ids_of(head)
    for row in range(2):
        root = int(TEXTS[row, ROOTS[row]])
        paths, ends = {(): 0.0}, [((), root, edges_by_hand.start(head))]
        for k in range(3):
            longer = []
            for path, before, state in ends:
                following, below = edges_by_hand.edges(head, slots.out[row, k], slots.logits[row, k], before, state)
                total = np.logaddexp.reduce(list(following.values()))
                for token, logit in following.items():
                    paths[*path, ids[token]] = paths[path] + logit - total
                    longer.append(((*path, ids[token]), ids[token], below))
            ends = sorted(longer, key=lambda end: -paths[end[0]])[:60]
        expected = sorted(paths, key=lambda path: -paths[path])[:7]
        found = {0: ()}
        for node in range(1, 7):
            found[node] = (*found[int(tree.parent[row, node])], int(tree.tokens[row, node]))
        assert set(found.values()) == set(expected)


@pytest.mark.matrix
@pytest.mark.parametrize("policy", [CHAIN, DynamicTree.chain(5, 0.05), DynamicTree(9, 2, 3)], ids=str)
@pytest.mark.parametrize("kind", ["vanilla", "gated, draft vocabulary"])
def test_a_path_ends_before_the_first_doubtful_node(kind: str, policy: TreePolicy):
    head, view = head_of(kind), view_of()
    whole, slots = drafted(DFlashDrafter(head=head, policy=policy), view)
    depth = np.zeros(whole.tokens.shape, int)
    sure = np.ones(whole.tokens.shape)
    for row in range(2):
        for node in range(1, policy.nodes):
            parent = int(whole.parent[row, node])
            depth[row, node] = depth[row, parent] + 1
            before = int(whole.tokens[row, parent])
            sure[row, node] = edges_by_hand.confidence(head, slots.out[row, depth[row, node] - 1], before)
    values = np.unique(sure[:, 1:].round(3))
    assert len(values) > 4
    for least in (0.0, float(values[len(values) // 2 :][:2].mean()), 1.0):
        expected = np.ones(whole.tokens.shape, bool)
        for row in range(2):
            for node in range(1, policy.nodes):
                expected[row, node] = expected[row, int(whole.parent[row, node])] and sure[row, node] >= least
        cut, _ = drafted(DFlashDrafter(head=head, policy=policy, least_confidence=least), view)
        np.testing.assert_array_equal(cut.valid, expected & whole.valid)
        np.testing.assert_array_equal(cut.tokens, whole.tokens)
        assert expected.all() == (least == 0) and (expected.sum() == 2) == (least == 1)


def test_a_confidence_of_slots_alone():
    """Without the Markov embedding, and with marginals: it depends on the depth alone."""
    config = dataclasses.replace(head_of("vanilla").config, markov=None, confidence=ConfidenceConfig(False))
    params = {name: node for name, node in head_of("vanilla").params.items() if name != "markov_head"}
    params["confidence_head"] = {"proj": {"weight": jnp.ones((1, 32)) / 4, "bias": jnp.zeros(1)}}
    head = DFlash(params=params, config=config)
    _, slots = drafted(DFlashDrafter(head=head, policy=CHAIN), view_of())
    sure = edges_by_hand.sigmoid(slots.out.sum(axis=-1) / 4)
    cut, _ = drafted(DFlashDrafter(head=head, policy=CHAIN, least_confidence=float(np.median(sure))), view_of())
    kept = np.cumprod(sure >= np.median(sure), axis=1).astype(bool)
    np.testing.assert_array_equal(cut.valid[:, 1:], kept)
    assert 0 < kept.sum() < kept.size


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("form", "allowed", "policy"), [("[0-Z]*", range(8, 51), DynamicTree(9, 2, 4)), ("Q*", range(41, 42), CHAIN)]
)
@pytest.mark.parametrize("kind", ["gated, draft vocabulary", "selector, draft vocabulary", "selector"])
def test_an_automaton_allows_every_guess(kind: str, form: str, allowed: range, policy: TreePolicy):
    """The second row has one. It may allow none of a slot's candidates: then there is no guess."""
    head = head_of(kind)
    automaton = token_automaton(regex_automaton(form), [bytes([40 + id_]) for id_ in range(61)], stop_ids=[2])
    rows = [(LogitsOptions(), (), None), (LogitsOptions(regex=form), (), automaton)]
    guide = Guide(processor_of(rows, TINY.vocab_size).automata, jnp.zeros(2, jnp.int32))
    free, _ = drafted(DFlashDrafter(head=head, policy=policy), view_of())
    tree, _ = drafted(DFlashDrafter(head=head, policy=policy), view_of(adjustment=penalties(0.0), guide=guide))
    np.testing.assert_array_equal(tree.tokens[0], free.tokens[0])
    guesses = set(tree.tokens[1, 1:][tree.valid[1, 1:]].tolist())
    assert guesses <= {*allowed, 2} and (guesses or policy == CHAIN)
    assert not set(free.tokens[1, 1:].tolist()) <= set(allowed)


def penalties(of_token: Any) -> LogitsAdjustment:
    """An adjustment that subtracts these from the logits."""
    penalty = jnp.zeros((2, 1, TINY.vocab_size)) + of_token
    return LogitsAdjustment(bias=jnp.zeros_like(penalty), repetition=jnp.ones_like(penalty), penalty=penalty)


def test_penalties_change_candidates():
    """What is subtracted from a token's logit counts before a slot's candidates are chosen."""
    head = head_of("selector")
    plain, slots = drafted(DFlashDrafter(head=head, policy=CHAIN), view_of())
    best = np.argsort(-slots.logits[:, 0], axis=-1)[:, :6]
    penalty = np.zeros((2, 1, TINY.vocab_size), np.float32)
    np.put_along_axis(penalty, best[:, None], 1e4, axis=2)
    changed, _ = drafted(DFlashDrafter(head=head, policy=CHAIN), view_of(adjustment=penalties(penalty)))
    assert all(plain.tokens[row, 1] in best[row] for row in range(2)) and plain.valid.all()
    assert all(changed.tokens[row, 1] not in best[row] for row in range(2)) and changed.valid.all()


def test_what_is_refused():
    with pytest.raises(ValueError, match="7 best tokens below a node, and the head's selector has 6 candidates"):
        DFlashDrafter(head=head_of("selector"), policy=DynamicTree(8, 1, 7))
    with pytest.raises(ValueError, match="least_confidence=0.5 for a head without a confidence head"):
        DFlashDrafter(head=head_of("selector"), policy=CHAIN, least_confidence=0.5)
    with pytest.raises(ValueError, match="least_confidence=1.5; expected a probability"):
        DFlashDrafter(head=head_of("rnn"), policy=CHAIN, least_confidence=1.5)
