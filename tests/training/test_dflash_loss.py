"""What a DFlash head learns, against block-by-block sums of what it would draft."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import dflash, pair

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.converters import load_head, save_head
from eagle_jax.models.dflash import DFlash
from eagle_jax.training import optimizer
from eagle_jax.training.data import Rows
from eagle_jax.training.dflash_head import dflash_taps
from eagle_jax.training.dflash_loss import choose_anchors, dflash_loss
from eagle_jax.training.features import hidden_states
from eagle_jax.training.heads import first
from eagle_jax.training.metrics import report_values
from eagle_jax.training.objective import DFLASH
from eagle_jax.training.settings import HeadConfig, OptimizerConfig
from eagle_jax.training.update import begin, evaluate, update, without_params

TOKENS = np.asarray(jax.random.randint(jax.random.key(5), (2, 12), 0, 28), np.int32)
ANSWER = np.stack([np.arange(12) >= 5, (np.arange(12) >= 2) & (np.arange(12) != 8)])
EVERY = dataclasses.replace(DFLASH, anchors=12)


@pytest.mark.matrix
@pytest.mark.parametrize("flags", [{}, {"causal_layers": (0, 1), "sample_from_anchor": True}, {"draft_vocab_size": 20}])
def test_each_slot_is_measured_on_what_it_would_draft(flags: dict):
    target, _ = pair()
    head, tokens = dflash(**flags), jnp.asarray(TOKENS)
    features = jax.jit(lambda target: hidden_states(target, tokens, head.taps))(target)
    loss = jax.jit(dflash_loss, static_argnums=6)
    value, report = loss(head, target, tokens, jnp.asarray(ANSWER), features, jax.random.key(0), EVERY)
    steps = head.num_drafted
    assert report.distribution.shape == (steps,)

    hidden, taps = features[..., :16], tuple(jnp.split(features[..., 16:], 3, axis=-1))
    true = jax.nn.log_softmax(head.drafted_part(target.logits(hidden)), axis=-1)
    best = np.asarray(jnp.argmax(target.logits(hidden), axis=-1))

    @jax.jit
    def drafted(row: int, anchor: int) -> jax.Array:
        cache, length = head.empty_cache(1, 12), jnp.full(1, anchor, jnp.int32)
        kv = head.context(tuple(tap[row][None] for tap in taps), jnp.arange(12, dtype=jnp.int32)[None], cache)
        cache = cache.write(kv, jnp.zeros(1, jnp.int32), length)
        return jax.nn.log_softmax(
            head.draft(target, tokens[row, anchor][None], length, cache, steps).logits[0], axis=-1
        )

    losses: list[list[float]] = [[] for _ in range(steps)]
    agreements: list[list[bool]] = [[] for _ in range(steps)]
    for row in range(2):
        for anchor in range(12):
            guesses = np.asarray(drafted(row, anchor))
            for k in range(steps):
                if not ANSWER[row, anchor : anchor + k + 2].all() or anchor + k + 1 > 11:
                    continue
                said, likeliest = np.asarray(true[row, anchor + k]), best[row, anchor + k]
                agreements[k].append(guesses[k].argmax() == likeliest)
                if likeliest < head.draft_vocab_size:
                    losses[k].append(-(np.exp(said) * guesses[k]).sum())
    assert [len(each) for each in agreements][:3] == [13, 10, 7]
    np.testing.assert_allclose(report.agreement, [np.mean(each) for each in agreements], rtol=1e-5)
    np.testing.assert_allclose(report.distribution, [np.mean(each) for each in losses], rtol=1e-4)
    weights = 0.867 ** np.arange(steps)
    np.testing.assert_allclose(value, (weights * np.asarray(report.distribution)).sum() / weights.sum(), rtol=1e-5)


def test_anchors_are_tokens_of_answers_that_are_followed_by_one():
    for seed in range(3):
        anchors, chosen = choose_anchors(jnp.asarray(ANSWER), 4, jax.random.key(seed))
        assert chosen.all() and all(len(set(row)) == 4 for row in anchors.tolist())
        assert set(anchors[0].tolist()) <= set(range(5, 11))
        assert set(anchors[1].tolist()) <= {2, 3, 4, 5, 6, 9, 10}
    _, chosen = choose_anchors(jnp.asarray(ANSWER), 50, jax.random.key(0))
    assert chosen.sum(axis=1).tolist() == [6, 7]
    assert not choose_anchors(jnp.zeros((1, 5), bool), 2, jax.random.key(0))[1].any()


def test_updates_make_it_smaller():
    """Through the same update as EAGLE's heads, with kept and with recomputed values."""
    target, _ = pair()
    rule = optimizer.make(OptimizerConfig(rate=1e-2, warmup=0, clip="none"), 40)
    head = dflash()
    bare, text = without_params(head), (jnp.asarray(TOKENS)[None], jnp.asarray(ANSWER)[None])
    runs = []
    for remat in (False, True):
        state, losses = begin(head, rule, jax.random.key(0)), []
        for _ in range(15):
            state, outcome = update(state, bare, target, *text, rule=rule, objective=EVERY, remat=remat)
            losses.append(float(outcome.loss))
        assert losses[-1] < losses[0] - 0.2
        runs.append(losses)
    np.testing.assert_allclose(*runs, rtol=1e-3)
    measured, report = evaluate(
        state.params, bare, target, Rows(TOKENS, ANSWER, np.ones_like(ANSWER)), batch=2, objective=EVERY
    )
    assert measured < losses[-1] + 0.05 and report.agreement.shape == (3,)


def test_features_are_not_guessed():
    target, _ = pair()
    objective = dataclasses.replace(EVERY, feature_weight=1.0)
    text = jnp.asarray(TOKENS), jnp.asarray(ANSWER), jnp.zeros((2, 12, 64)), jax.random.key(0)
    with pytest.raises(ValueError, match="feature_weight=1.0 with a DFlash head; expected 0"):
        dflash_loss(dflash(), target, *text, objective)


@pytest.mark.parametrize("causal", [False, True])
def test_the_head_that_a_run_begins_with(causal: bool, tmp_path):
    target, _ = pair()
    settings = HeadConfig(method="dflash", layers=2, mask_token_id=28, causal=causal)
    head = first(settings, target, None, jax.random.key(0))
    assert isinstance(head, DFlash) and head.config.block_size == 16 and head.config.draft_vocab_size is None
    assert head.taps == (0, 1, 2) and head.config.causal_layers == ((0, 1) if causal else ())
    save_head(head, tmp_path / "head")
    assert load_head(tmp_path / "head", target).config == head.config
    again = first(HeadConfig(method="dflash", start=str(tmp_path / "head")), target, None, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, again.params, head.params)
    small = HeadConfig(method="dflash", mask_token_id=28, block_size=8, draft_vocab_size=3)
    some = first(small, target, np.array([3, 5, 17], np.int32), jax.random.key(0))
    table = target.params["embed_tokens"]["embedding"]
    np.testing.assert_array_equal(some.params["lm_head"]["weight"], table[np.array([3, 5, 17])])


def test_the_heads_that_tie_tokens_together():
    """DSpark and DFlash 2 as published, and with every size given."""
    target, _ = pair()
    spark = first(HeadConfig(method="dspark", mask_token_id=28), target, None, jax.random.key(0))
    assert isinstance(spark, DFlash) and spark.kind == "dspark"
    c = spark.config
    assert (c.block_size, c.num_drafted, c.sample_from_anchor, c.layers.sliding_window) == (7, 7, True, None)
    assert (c.markov, c.confidence) == (MarkovConfig(256, "vanilla"), ConfidenceConfig(with_markov=True))
    second = first(HeadConfig(method="dflash2", mask_token_id=28), target, None, jax.random.key(0))
    assert isinstance(second, DFlash) and second.kind == "dflash2"
    c = second.config
    assert (c.block_size, c.num_drafted, c.layers.sliding_window, c.causal_layers) == (8, 7, 2048, ())
    assert (c.convolution, c.selector) == (ConvolutionConfig(2, 16), SelectorConfig(256, 16))
    assert not second.params["candidate_selector"]["successor_codebook"].any(), "it chooses as the slots do at first"
    given = HeadConfig(method="dspark", mask_token_id=28, markov_rank=3, markov="gated", confidence=False, window=9)
    c = first(given, target, np.arange(5, dtype=np.int32), jax.random.key(0)).config
    assert (c.markov, c.confidence, c.draft_vocab_size) == (MarkovConfig(3, "gated"), None, 5)
    assert c.layers.sliding_window == 9
    sizes = {"selector_rank": 3, "selector_top_k": 4, "conv_kernel_size": 3, "conv_group_size": 8}
    c = first(HeadConfig(method="dflash2", mask_token_id=28, **sizes), target, None, jax.random.key(0)).config
    assert (c.convolution, c.selector) == (ConvolutionConfig(3, 8), SelectorConfig(3, 4))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"markov": MarkovConfig(4, "vanilla"), "confidence": ConfidenceConfig(with_markov=True)}, ("confidence",)),
        ({"selector": SelectorConfig(4, 3)}, ("selector", "candidates")),
    ],
    ids=["dspark", "dflash2"],
)
def test_what_ties_tokens_together_is_reported(flags: dict, parts: tuple[str, ...]):
    """By slot, and its weight is that of the objective; without one there is no such number."""
    target, _ = pair()
    tokens = jnp.asarray(TOKENS)
    features = jax.jit(lambda target: hidden_states(target, tokens, (0, 1, 2)))(target)
    text = tokens, jnp.asarray(ANSWER), features, jax.random.key(0)
    loss = jax.jit(dflash_loss, static_argnums=6)
    value, report = loss(dflash(**flags), target, *text, EVERY)
    _, plain = loss(dflash(), target, *text, EVERY)
    assert all(getattr(report, name).shape == (3,) and getattr(plain, name) is None for name in parts)
    assert set(report_values(1.0, plain)) == {"loss", "feature", "distribution", "agreement"}
    assert set(report_values(1.0, report)) == {"loss", "feature", "distribution", "agreement", *parts}
    weight = {"confidence_weight": 3.0, "selector_weight": 3.0}
    heavier, _ = loss(dflash(**flags), target, *text, dataclasses.replace(EVERY, **weight))
    decay = 0.867 ** np.arange(3)
    extra = 2 * (decay * np.asarray(getattr(report, parts[0]))).sum() / decay.sum()
    np.testing.assert_allclose(heavier - value, extra, rtol=1e-4)


def test_published_taps():
    """Entering layers; z-lab names those that are left, one less: Qwen3-4B 1, 9, 17, 25, 33, Qwen3.6-27B 1, 16, ..."""
    settings = HeadConfig(method="dflash", mask_token_id=1)
    assert dflash_taps(settings, 36) == (2, 10, 18, 26, 34) and dflash_taps(settings, 64) == (2, 17, 32, 47, 62)
    assert dflash_taps(dataclasses.replace(settings, taps=(1, 5)), 36) == (1, 5)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="without head.mask_token_id; expected the id of a token that no text has"):
        HeadConfig(method="dflash")
    with pytest.raises(ValueError, match="head.block_size with method eagle3; expected dflash"):
        HeadConfig(method="eagle3", block_size=8)
    with pytest.raises(ValueError, match="head.markov_rank with method dflash; expected dspark"):
        HeadConfig(method="dflash", mask_token_id=1, markov_rank=8)
    with pytest.raises(ValueError, match="head.confidence with method dflash2; expected dspark"):
        HeadConfig(method="dflash2", mask_token_id=1, confidence=False)
    with pytest.raises(ValueError, match="method dspark without head.mask_token_id"):
        HeadConfig(method="dspark")
    with pytest.raises(ValueError, match="head.selector_top_k=0"):
        HeadConfig(method="dflash2", mask_token_id=1, selector_top_k=0)
    with pytest.raises(ValueError, match="objective.anchors=0"):
        dataclasses.replace(DFLASH, anchors=0)
