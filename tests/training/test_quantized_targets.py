"""A head is trained against a target of quantized weights as against the floats that they stand for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.models.lm import LM
from eagle_jax.models.quant import dense_params
from eagle_jax.testing import TINY, synthetic_pair
from eagle_jax.training import optimizer
from eagle_jax.training.objective import Objective
from eagle_jax.training.settings import OptimizerConfig
from eagle_jax.training.update import begin, update, without_params
from tests.models.quantized_targets import CONFIG, quantized_target

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, TINY.vocab_size, (1, 4, 12)), jnp.int32)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["Q4_1", "GPTQ", "FP8", "MXFP4"])
def test_an_update_is_that_against_the_floats(kind):
    head, target = synthetic_pair(CONFIG)[1], quantized_target(kind)
    floats = LM(params=dense_params(target.params), config=CONFIG)
    changed = dataclasses.replace(floats, params=jax.tree.map(lambda leaf: leaf * 1.01, floats.params))
    rule = optimizer.make(OptimizerConfig(warmup=0, rate=1e-3), 10)
    objective = Objective(noise=0.0, distribution_weight=1.0)

    def after(one: LM) -> tuple[float, float]:
        state, text = begin(head, rule, jax.random.key(1)), (TOKENS, jnp.ones(TOKENS.shape, bool))
        _, outcome = update(state, without_params(head), one, *text, rule=rule, objective=objective)
        return float(outcome.loss), float(outcome.gradient_norm)

    expected = after(floats)
    np.testing.assert_allclose(after(target), expected, rtol=1e-4)
    assert not np.allclose(after(changed), expected, rtol=1e-4)
