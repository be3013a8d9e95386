"""What EAGLE's head leaves out while more of the prompt comes changes nothing that is drafted from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import CommittedRows, Verification
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.testing import synthetic_head3, synthetic_pair

TARGET, HEAD = synthetic_pair()


@pytest.mark.matrix
@pytest.mark.parametrize("head", [HEAD, synthetic_head3(TARGET, taps=(0, 1))], ids=["EAGLE-1", "EAGLE-3"])
def test_a_chunk_of_the_prompt_needs_keys_and_values_alone(head):
    drafter = Eagle(head=head, policy=DynamicTree(4, 1, 2))
    tokens = jnp.array([[3, 1, 4, 1], [5, 9, 2, 6]], jnp.int32)
    output = TARGET.causal(tokens, drafter.taps)
    observed = CommittedRows(
        start=jnp.zeros(2, jnp.int32),
        count=jnp.array([4, 2], jnp.int32),
        tokens=tokens,
        following=jnp.roll(tokens, -1, axis=1),
        hidden=output.hidden,
        taps=output.taps,
    )
    checked = Verification(Tree.root_only(tokens[:, 0]), TARGET.logits(output.hidden), tokens)
    of_a_step = dataclasses.replace(observed, checked=checked)
    cases = of_a_step, observed, dataclasses.replace(observed, is_prefill_chunk=True)
    before = drafter.init(TARGET, 2, 16)
    observe = jax.jit(lambda observed: drafter.observe(TARGET, before, observed))
    whole, paused, part = map(observe, cases)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), whole.cache, part.cache)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), whole, paused)
    np.testing.assert_array_equal(part.guess, before.guess)
    assert np.abs(whole.guess).max() > 0
    costs = [observe.lower(case).compile().cost_analysis()["flops"] for case in cases]
    assert costs[2] < 0.7 * costs[0] and costs[1] < costs[0]
