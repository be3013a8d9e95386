"""The loss against plain numpy, its masks against hand-written rows, its sight against real drafting."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import head3, pair

from eagle_jax.configs.target import Latent, Rope
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.training import loss as L
from eagle_jax.training import loss_parts
from eagle_jax.training.features import hidden_states
from eagle_jax.training.objective import EAGLE3, Objective

# One program each: op by op every shape of every op would be compiled by itself.
loss = jax.jit(L.loss, static_argnums=6)


@jax.jit
def forward(target: LM, tokens: jax.Array) -> jax.Array:
    return target(tokens)[0]


def test_smooth_l1_is_the_published_formula():
    rng = np.random.default_rng(0)
    guess, truth = (rng.normal(size=(2, 3, 5)).astype(np.float32) * 2 for _ in range(2))
    expected = np.zeros((2, 3))
    for b in range(2):
        for n in range(3):
            for h in range(5):
                d = abs(float(guess[b, n, h]) - float(truth[b, n, h]))
                expected[b, n] += (0.5 * d * d if d < 1 else d - 0.5) / 5
    np.testing.assert_allclose(loss_parts.smooth_l1(jnp.asarray(guess), jnp.asarray(truth)), expected, rtol=1e-5)


def test_soft_cross_entropy_against_numpy():
    rng = np.random.default_rng(1)
    logits, true_logits = (rng.normal(size=(1, 4, 7)).astype(np.float32) for _ in range(2))
    distribution = np.exp(true_logits) / np.exp(true_logits).sum(-1, keepdims=True)
    guessed = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -(distribution * np.log(guessed)).sum(-1)
    np.testing.assert_allclose(
        loss_parts.soft_cross_entropy(jnp.asarray(logits), jnp.asarray(true_logits)), expected, rtol=1e-5
    )


def test_drafted_slots_need_root_and_drafted_token_in_the_answer():
    #         question   answer       question  answer
    answer = [0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    row = jnp.asarray([answer], bool)
    # slot i drafts token i + 2 from root i + 1 - step
    np.testing.assert_array_equal(L.drafted_slots_mask(row, 0)[0], [0, 0, 1, 1, 1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(L.drafted_slots_mask(row, 1)[0], [0, 0, 0, 1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(L.drafted_slots_mask(row, 2)[0], [0, 0, 0, 0, 1, 0, 0, 0, 0, 0])


def test_drafted_slots_stop_at_the_ends_of_the_row():
    everything = jnp.ones((1, 5), bool)
    np.testing.assert_array_equal(L.drafted_slots_mask(everything, 0)[0], [1, 1, 1, 0])
    np.testing.assert_array_equal(L.drafted_slots_mask(everything, 2)[0], [0, 1, 1, 0])


def test_sight_is_the_picture_in_its_docstring():
    np.testing.assert_array_equal(L.visible_keys(4, 1), [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(L.visible_keys(3, 0), np.tril(np.ones((3, 3))))
    rows = jnp.arange(4.0)[None, None, :, None]
    first = L.append_step((), ((rows, rows),))
    (keys, _), *_ = L.append_step(first, ((rows, rows),))
    np.testing.assert_array_equal(keys[0, 0, :, 0], [0, 1, 2, 3, 0, 0, 1, 2])
    (keys, _), *_ = L.append_step(((keys, keys),), ((rows, rows),))
    np.testing.assert_array_equal(keys[0, 0, :, 0], [0, 1, 2, 3, 0, 0, 0, 1, 0, 0, 1, 2])


def latent_head() -> Head3:
    """A head with latent attention."""
    heads = {"num_key_value_heads": 4, "rope": Rope(theta=1e4, interleaved=True), "attention_multiplier": 0.3}
    heads["latent"] = Latent(rank=10, query_rank=12, plain_dim=6, value_dim=5)
    config = head3(29).config
    config = dataclasses.replace(config, layers=dataclasses.replace(config.layers, **heads))
    made = Head3.init(config, jax.random.key(1))
    return dataclasses.replace(made, params=jax.tree.map(lambda p: p * 10 if p.ndim == 2 else p, made.params))


@pytest.mark.matrix
@pytest.mark.parametrize("make", [lambda: pair()[1], latent_head])
def test_a_training_step_sees_what_a_drafting_step_sees(make):
    """Step 2 at slot 5 equals drafting two steps by hand behind true features 0 .. 3."""
    target, head = pair()[0], make()
    tokens = jax.random.randint(jax.random.key(2), (1, 9), 0, 29)

    @jax.jit
    def by_hand(target: LM, head: DraftHead) -> list[jax.Array]:
        embeddings, features = target.embed(tokens[:, 1:]), target(tokens)[0]
        chain, reads = features[:, :4], []
        for slot in (3, 4, 5):
            out = head.causal(embeddings[:, : slot + 1], chain)
            reads.append(out[:, slot])
            chain = jnp.concatenate([chain, out[:, slot : slot + 1]], axis=1)
        return reads

    @jax.jit
    def in_training(target: LM, head: DraftHead) -> list[jax.Array]:
        embeddings, guesses = target.embed(tokens[:, 1:]), []
        entering, beside, cache = target(tokens)[0][:, :-1], (), head.empty_cache(1, 0)
        positions = jnp.arange(8, dtype=jnp.int32)[None]
        for step in range(3):
            guess, kv = head.forward(embeddings, entering, positions, L.visible_keys(8, step)[None], cache, beside)
            beside = L.append_step(beside, kv)
            entering = jnp.concatenate([entering[:, :1], guess[:, :-1]], axis=1)
            guesses.append(guess)
        return guesses

    guesses = in_training(target, head)
    for step, (slot, read) in enumerate(zip((3, 4, 5), by_hand(target, head), strict=True)):
        np.testing.assert_allclose(guesses[step][:, slot], read, atol=1e-5)


def test_loss_is_the_weighted_mean_of_its_parts():
    target, head = pair()
    tokens = jax.random.randint(jax.random.key(2), (2, 12), 0, 29)
    answer = jnp.asarray(np.arange(12) >= 4)[None].repeat(2, axis=0)
    objective = Objective(steps=3, decay=0.5, feature_weight=2.0, distribution_weight=0.3, noise=0.0)
    value, report = loss(head, target, tokens, answer, forward(target, tokens), jax.random.key(0), objective)
    per_step = 2.0 * np.asarray(report.feature) + 0.3 * np.asarray(report.distribution)
    assert report.agreement.shape == (3,)
    np.testing.assert_allclose(value, (per_step * [1, 0.5, 0.25]).sum() / 1.75, rtol=1e-5)


def test_cross_entropy_is_bounded_by_the_entropy_of_the_true_law():
    target, head = pair()
    tokens = jax.random.randint(jax.random.key(2), (1, 10), 0, 29)
    features = forward(target, tokens)
    answer = jnp.ones((1, 10), bool)
    exact = Objective(noise=0.0, feature_weight=0.0, distribution_weight=1.0)
    value, report = loss(head, target, tokens, answer, features, jax.random.key(0), exact)
    entropy = loss_parts.soft_cross_entropy(target.logits(features), target.logits(features))
    assert float(value) > float(jnp.mean(entropy)) - 1e-5, (
        "a cross-entropy is never below the true distribution's entropy"
    )
    np.testing.assert_allclose(value, report.distribution[0], rtol=1e-6)


def test_eagle3_steps_are_the_published_ones():
    """From every slot i on, feature by feature: true up to i, then the head's own output, with the text's tokens."""
    (target, _), head = pair(), head3(drafted=21)
    tokens = jax.random.randint(jax.random.key(2), (1, 9), 0, 29)
    answer = jnp.asarray(np.arange(9) >= 2)[None]
    states = jax.jit(hidden_states, static_argnums=2)(target, tokens, head.taps)
    hidden, *taps = jnp.split(states, 4, axis=-1)
    np.testing.assert_array_equal(taps[0], target.embed(tokens))
    objective = dataclasses.replace(EAGLE3, steps=3)
    _, report = loss(head, target, tokens, answer, states, jax.random.key(0), objective)

    @jax.jit
    def run(features: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        out = head.causal(head.embed(target, tokens[:, 1:]), features)
        return out[0], head.logits(target, out)[0], loss_parts.smooth_l1(head.guess(out), hidden[:, 1:])[0]

    true_features = np.asarray(head.features(hidden, tuple(taps)))[:, :-1]
    true_logits = np.asarray(target.logits(hidden))[0, 1:]
    distributions: list[list[float]] = [[], [], []]
    agreements: list[list[bool]] = [[], [], []]
    distances: list[list[float]] = [[], [], []]
    for i in range(8):
        features = true_features.copy()
        for step in range(3):
            slot = i + step
            if slot + 1 >= 8 or i + 1 < 2:  # what it drafts, token slot + 2, is not there, or the root is no answer
                continue
            out, logits, distance = run(features)
            distances[step].append(float(distance[slot]))
            agreements[step].append(int(np.argmax(logits[slot])) + 8 == int(np.argmax(true_logits[slot])))
            if np.argmax(true_logits[slot]) >= 8:
                distribution, guess = (np.asarray(values[slot], np.float64) for values in (true_logits[:, 8:], logits))
                distribution = np.exp(distribution - np.logaddexp.reduce(distribution))
                distributions[step].append(float(-(distribution * (guess - np.logaddexp.reduce(guess))).sum()))
            features[0, min(slot + 1, 7)] = out[slot]
    assert 0 < len(distributions[0]) < len(agreements[0]), "every likeliest token is drafted, or none"
    np.testing.assert_allclose(report.distribution, [np.mean(step) for step in distributions], rtol=1e-4)
    np.testing.assert_allclose(report.agreement, [np.mean(step) for step in agreements], rtol=1e-6)
    np.testing.assert_allclose(report.feature, [np.mean(step) for step in distances], rtol=1e-4)


def test_features_of_another_width_cannot_be_compared():
    (target, _), narrow = pair(), head3(drafted=29, width=12)
    tokens = jnp.zeros((1, 5), jnp.int32)
    text = tokens, jnp.ones((1, 5), bool), hidden_states(target, tokens, narrow.taps), jax.random.key(0)
    _, report = loss(narrow, target, *text, dataclasses.replace(EAGLE3, steps=1))
    np.testing.assert_array_equal(report.feature, [0])
    with pytest.raises(ValueError, match="feature_weight=0.5 with a head of another width"):
        L.loss(narrow, target, *text, dataclasses.replace(EAGLE3, steps=1, feature_weight=0.5))


def test_at_least_one_step():
    with pytest.raises(ValueError, match="steps=0"):
        Objective(steps=0)
