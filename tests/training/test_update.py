"""One update: passes add up, the state alone decides, weights stay float32 whatever is computed in."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import pair

from eagle_jax.training import optimizer
from eagle_jax.training.data import Rows
from eagle_jax.training.features import hidden_states
from eagle_jax.training.loss import loss
from eagle_jax.training.objective import Objective
from eagle_jax.training.settings import OptimizerConfig
from eagle_jax.training.update import accepted_length, begin, evaluate, update, without_params

OBJECTIVE = Objective(noise=0.0, distribution_weight=1.0)
TOKENS = np.random.default_rng(0).integers(0, 29, (4, 12)).astype(np.int32)
ANSWER = np.ones((4, 12), bool)


def one(target, head, rule, passes: int):
    shape = (passes, 4 // passes, 12)
    state = begin(head, rule, jax.random.key(1))
    text = jnp.asarray(TOKENS.reshape(shape)), jnp.asarray(ANSWER.reshape(shape))
    return update(state, without_params(head), target, *text, rule=rule, objective=OBJECTIVE)


def test_an_update_of_several_passes_is_that_of_one_pass_over_all_rows():
    rule = optimizer.make(OptimizerConfig(warmup=0, rate=1e-3, clip="norm"), 10)
    (whole, said), (parts, said_too) = (one(*pair(), rule, passes) for passes in (1, 2))
    np.testing.assert_allclose(said.loss, said_too.loss, rtol=1e-5)
    np.testing.assert_allclose(said.gradient_norm, said_too.gradient_norm, rtol=1e-4)
    assert int(whole.step) == int(parts.step) == 1
    for a, b in zip(jax.tree.leaves(whole.moments), jax.tree.leaves(parts.moments), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_weights_stay_float32_while_bfloat16_computes():
    target, head = pair()
    rounded = dataclasses.replace(target, params=jax.tree.map(lambda p: p.astype(jnp.bfloat16), target.params))
    rule = optimizer.make(OptimizerConfig(warmup=0, rate=1e-6), 10)
    state, said = one(rounded, head, rule, 1)
    assert {p.dtype for p in jax.tree.leaves(state.params)} == {np.dtype("float32")} and np.isfinite(said.loss)
    moved = jax.tree.map(lambda new, old: float(jnp.abs(new - old).max()), state.params, head.params)
    assert 0 < max(jax.tree.leaves(moved)) < 1e-5, "a step far below bfloat16's resolution is not lost"


def test_draft_steps_computed_again_give_the_same_gradient():
    target, head = pair()
    features = hidden_states(target, jnp.asarray(TOKENS))
    text = (
        jnp.asarray(TOKENS),
        jnp.asarray(ANSWER),
        features,
        jax.random.key(0),
        dataclasses.replace(OBJECTIVE, steps=2),
    )

    def of(params, remat):
        return loss(dataclasses.replace(head, params=params), target, *text, remat=remat)[0]

    kept, again = jax.jit(lambda params: [jax.grad(of)(params, remat) for remat in (False, True)])(head.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), kept, again)
    forms = [str(jax.make_jaxpr(of, static_argnums=1)(head.params, remat)) for remat in (False, True)]
    assert ["prevent_cse" in form for form in forms] == [False, True]


def test_evaluation_does_not_depend_on_the_batch():
    target, head = pair()
    rows = Rows(TOKENS, ANSWER, ANSWER)
    frame = without_params(head)
    alone, together = (evaluate(head.params, frame, target, rows, batch=batch, objective=OBJECTIVE) for batch in (3, 4))
    np.testing.assert_allclose(alone[0], together[0], rtol=1e-5)
    np.testing.assert_allclose(alone[1].agreement, together[1].agreement, rtol=1e-5)


def test_accepted_length_counts_a_token_if_all_before_it_agree():
    assert accepted_length(np.array([0.5, 0.5])) == 1.75
    assert accepted_length(np.array([0.0, 1.0])) == 1.0


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.8536, 0.5, 0.1464]),
        ("constant", [0.5, 1, 1, 1, 1, 1]),
    ],
)
def test_the_rate_rises_to_its_peak_and_falls_to_its_end(decay, expected):
    rate = optimizer.rate_at(OptimizerConfig(rate=2.0, warmup=2, decay=decay), 6)
    np.testing.assert_allclose([rate(step) / 2.0 for step in range(6)], expected, atol=1e-4)
    late = optimizer.rate_at(OptimizerConfig(rate=2.0, warmup=0, decay=decay, final=0.1), 10)
    np.testing.assert_allclose(late(10), 2.0 if decay == "constant" else 0.2, atol=1e-6)


@pytest.mark.parametrize(
    ("clip", "expected"), [("value", [0.5, -0.5, 0.1]), ("norm", [0.3, -0.4, 0.01]), ("none", [3.0, -4.0, 0.1])]
)
def test_gradients_are_clipped_by_value_or_by_norm(clip, expected):
    config = OptimizerConfig(
        warmup=0, rate=1.0, decay="constant", betas=(0.0, 0.0), weight_decay=0.0, clip=clip, clip_at=0.5
    )
    rule, params = optimizer.make(config, 10), {"weight": jnp.zeros(3)}
    _, state = rule.update({"weight": jnp.array([3.0, -4.0, 0.1])}, rule.init(params), params)
    (first,) = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (3,) and (leaf < 0).any()]
    np.testing.assert_allclose(first, expected, atol=0.01)  # Adam's first moment is the clipped gradient itself


def test_muon_takes_the_matrices_and_adam_the_rest():
    rule = optimizer.make(OptimizerConfig(name="muon", warmup=0, rate=0.1, decay="constant", weight_decay=0.0), 10)
    params = {"fc": {"weight": jnp.eye(4), "bias": jnp.ones(4)}}
    changes, _ = rule.update(jax.tree.map(lambda p: 0.1 * p, params), rule.init(params), params)
    weight, bias = changes["fc"]["weight"], changes["fc"]["bias"]
    assert -0.08 < float(bias.max()) == float(bias.min()) < -0.05  # Adam's first step, with momentum looked ahead
    np.testing.assert_allclose(jnp.linalg.norm(weight) / 4, 0.1 * 0.2, rtol=0.3)  # orthogonal, of AdamW's usual size
