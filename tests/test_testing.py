"""The tiny models that tests are made of do what they promise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY, synthetic_pair

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, TINY.vocab_size, (4, 48)))


@jax.jit
def right_guesses(target: LM, head: Head) -> jax.Array:
    """Share of places where the head's best guess of the next token but one is the target's."""
    features, logits = target(TOKENS)
    guessed = target.logits(head.causal(target.embed(TOKENS[:, 1:]), features[:, :-1]))
    return jnp.mean(jnp.argmax(guessed, -1) == jnp.argmax(logits[:, 1:], -1))


def test_the_same_pair_every_time():
    one, two = synthetic_pair(seed=3), synthetic_pair(seed=3)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)
    other, _ = synthetic_pair(seed=4)
    assert (one[0].embed(TOKENS) != other.embed(TOKENS)).any()


def test_error_sets_how_often_the_head_is_right():
    shares = [float(right_guesses(*synthetic_pair(error=error))) for error in (0.0, 0.3, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6 > 0.4 > shares[2]


def test_strength_sets_how_much_the_text_before_counts():
    @jax.jit
    def change(target: LM) -> jax.Array:
        """Of the last logits, when the first token is another one."""
        other = TOKENS.at[:, 0].set((TOKENS[:, 0] + 1) % TINY.vocab_size)
        return jnp.max(jnp.abs(target(TOKENS)[1][:, -1] - target(other)[1][:, -1]))

    changes = [float(change(synthetic_pair(strength=strength)[0])) for strength in (0.0, 0.2, 1.0)]
    assert changes[0] == 0.0 < changes[1] < changes[2]


@pytest.mark.matrix
@pytest.mark.parametrize("change", [{"vocab_size": 100}, {"num_hidden_layers": 1}, {"tie_word_embeddings": True}])
def test_any_configuration_will_do(change):
    config = dataclasses.replace(TINY, **change)
    target, head = synthetic_pair(config)
    assert target.config == config
    assert head.config.layers == dataclasses.replace(config, num_hidden_layers=1)
    assert ("lm_head" in target.params) != config.tie_word_embeddings
    assert jnp.isfinite(right_guesses(target, head))
