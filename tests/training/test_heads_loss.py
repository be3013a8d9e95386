"""What Medusa's and Hydra's heads learn, against slot-by-slot sums."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import hydra, medusa, pair

from eagle_jax.models.heads import Hydra, Medusa
from eagle_jax.training import optimizer
from eagle_jax.training.data import Rows
from eagle_jax.training.features import hidden_states
from eagle_jax.training.heads_loss import heads_loss
from eagle_jax.training.objective import PARALLEL
from eagle_jax.training.settings import OptimizerConfig
from eagle_jax.training.update import begin, evaluate, update, without_params

TOKENS = np.asarray(jax.random.randint(jax.random.key(5), (1, 10), 0, 29), np.int32)
ANSWER = (np.arange(10) >= 3)[None]


@pytest.mark.matrix
@pytest.mark.parametrize("head", [medusa(), hydra()], ids=["medusa", "hydra"])
def test_each_head_is_measured_on_what_it_would_draft(head: Medusa | Hydra):
    target, _ = pair()
    tokens = jnp.asarray(TOKENS)
    hidden = jax.jit(hidden_states)(target, tokens)
    loss = jax.jit(heads_loss, static_argnums=6)  # op by op every shape of every op would be compiled by itself
    value, report = loss(head, target, tokens, jnp.asarray(ANSWER), hidden, jax.random.key(0), PARALLEL)
    assert report.distribution.shape == (3,), "as many steps as there are heads"

    text, embedded = hidden, np.asarray(target.embed(tokens))[0]
    if isinstance(head, Hydra):
        text = jax.jit(lambda head, hidden: head.over_text(hidden, jnp.zeros_like(hidden))[0][..., :16])(head, hidden)
    true = np.asarray(jax.nn.log_softmax(target.logits(hidden)), np.float64)[0]
    guessed = jax.jit(lambda head, level, read: jax.nn.log_softmax(head.logits(level, read)[0, 0]), static_argnums=1)
    for level in range(3):
        distributions, agreements = [], []
        for i in range(10 - level - 2):
            if not ANSWER[0, i + 1 : i + level + 3].all():  # the root, the path, and what is drafted
                continue
            path = embedded[i + 1 : i + level + 2].ravel() if isinstance(head, Hydra) else np.zeros(0, np.float32)
            read = jnp.asarray(np.concatenate([np.asarray(text)[0, i], path]))[None, None]
            drafted = np.asarray(guessed(head, level, read), np.float64)
            distributions.append(-(np.exp(true[i + level + 1]) * drafted).sum())
            agreements.append(drafted.argmax() == true[i + level + 1].argmax())
        assert len(distributions) == 6 - level
        np.testing.assert_allclose(report.distribution[level], np.mean(distributions), rtol=1e-4)
        np.testing.assert_allclose(report.agreement[level], np.mean(agreements), rtol=1e-6)
    weights = 0.8 ** np.arange(3)
    np.testing.assert_allclose(value, (weights * np.asarray(report.distribution)).sum() / weights.sum(), rtol=1e-5)


def test_features_are_not_guessed():
    target, _ = pair()
    objective = dataclasses.replace(PARALLEL, feature_weight=1.0)
    text = jnp.asarray(TOKENS), jnp.asarray(ANSWER), jnp.zeros((1, 10, 16)), jax.random.key(0)
    with pytest.raises(ValueError, match="feature_weight=1.0 with Medusa heads; expected 0"):
        heads_loss(medusa(), target, *text, objective)


@pytest.mark.matrix
@pytest.mark.parametrize("head", [medusa(), hydra()], ids=["medusa", "hydra"])
def test_updates_make_it_smaller(head: Medusa | Hydra):
    """Through the same update as EAGLE's heads, with kept and with recomputed values."""
    target, _ = pair()
    rule = optimizer.make(OptimizerConfig(rate=1e-2, warmup=0, clip="none"), 40)
    state, bare = begin(head, rule, jax.random.key(0)), without_params(head)
    text = jnp.asarray(TOKENS)[None], jnp.asarray(ANSWER)[None]
    objective = dataclasses.replace(PARALLEL, steps=2)
    distributions = []
    for _ in range(12):
        state, outcome = update(state, bare, target, *text, rule=rule, objective=objective, remat=True)
        distributions.append(float(outcome.loss))
    assert outcome.report.distribution.shape == (2,) and distributions[-1] < distributions[0] - 0.2
    rows = Rows(TOKENS, ANSWER, np.ones_like(ANSWER))
    measured, _ = evaluate(state.params, bare, target, rows, batch=1, objective=objective)
    assert measured < distributions[-1]
