"""Training moves a head towards its target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import pair

from eagle_jax.training import data, features, loop
from eagle_jax.training.loss import Objective
from eagle_jax.training.optimizer import schedule


def rows(count: int = 6, length: int = 16) -> data.Rows:
    tokens = np.random.default_rng(0).integers(0, 29, (count, length)).astype(np.int32)
    everything = np.ones((count, length), bool)
    return data.Rows(tokens, everything, everything)


def test_features_are_the_targets_hidden_states_for_any_batch():
    target, _ = pair()
    text = rows(5)
    seen = []
    got = features.compute(target, text, batch=2, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_allclose(got, np.asarray(target(jnp.asarray(text.tokens))[0]), atol=2e-3)  # float16 on the host
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_a_few_updates_reduce_the_loss_and_leave_the_target_alone():
    target, head = pair()
    text = rows()
    hidden = features.compute(target, text, batch=6)
    before = jax.tree.map(np.asarray, target.params)
    start = loop.evaluate(head, target, text, hidden, steps=2, batch=3)
    counted = []
    trained = loop.train(
        head,
        target,
        text,
        hidden,
        Objective(steps=2, law_weight=1.0),
        minutes=0.15,
        batch=6,
        rate=1e-2,
        observe=lambda _, progress: counted.append(progress.updates),
    )
    end = loop.evaluate(trained, target, text, hidden, steps=2, batch=3)
    assert counted == list(range(1, len(counted) + 1))
    assert (np.asarray(end.feature) < np.asarray(start.feature)).all()
    assert (np.asarray(end.law) < np.asarray(start.law)).all()
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, target.params))


def test_a_batch_larger_than_the_data_is_refused():
    target, head = pair()
    text = rows(2)
    hidden = features.compute(target, text, batch=2)
    with pytest.raises(ValueError, match="batch of 3 rows"):
        loop.train(head, target, text, hidden, Objective(), minutes=0.1, batch=3, rate=1e-3)


def test_schedule_warms_up_and_ends_low():
    rates = [schedule(p, 1.0, warmup=0.1, final=0.02) for p in (0.0, 0.05, 0.1, 0.55, 1.0, 2.0)]
    np.testing.assert_allclose(rates, [0.0, 0.5, 1.0, 0.51, 0.02, 0.02])
