"""Penalties and bans at the nodes of a tree, counted one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.decoding.processor import BANNED, Prefix, adjustment_at
from eagle_jax.requests.processing import LogitsOptions
from eagle_jax.scheduling.logits_arrays import processor_of

VOCABULARY, NODES, SLOTS = 13, 7, 11
PARENTS = np.array([-1, 0, 0, 1, 1, 3, 5])
OPTIONS = LogitsOptions(
    repetition_penalty=1.25, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((2, 1.5),), min_tokens=6
)
WORDS = ((3, 3), (4, 5), (1, 2, 3), (9,))


@pytest.mark.parametrize("seed", range(4))
def test_every_node_counts_the_text_and_its_own_path(seed):
    rng = np.random.default_rng(seed)
    text, nodes = rng.integers(0, 6, (2, SLOTS)), rng.integers(0, 6, (2, NODES))  # few tokens, which repeat
    count, prompt, stop = np.array([8, 5]), np.array([3, 4]), np.array([[12, -1], [-1, 11]])
    ancestors = np.eye(NODES, dtype=bool)
    for node in range(1, NODES):
        ancestors[node] |= ancestors[PARENTS[node]]
    arrays = (text, count, prompt, nodes)
    prefix = Prefix(
        *(jnp.asarray(array, jnp.int32) for array in arrays), jnp.asarray(np.stack([ancestors] * 2)), states=None
    )
    processor = processor_of([(OPTIONS, WORDS, None)] * 2, VOCABULARY)
    adjustment = jax.jit(adjustment_at)(processor, prefix, jnp.asarray(stop, jnp.int32))
    for row in range(2):
        for node in range(NODES):
            path = [nodes[row, i] for i in range(1, NODES) if ancestors[node, i]]
            written = [*text[row, : count[row]], *path]
            answer = written[prompt[row] :]
            banned = np.zeros(VOCABULARY)
            for *before, last in WORDS:
                banned[last] += written[len(written) - len(before) :] == before
            banned = np.minimum(banned, 1)
            if len(answer) < OPTIONS.min_tokens:
                banned[[id_ for id_ in stop[row] if id_ >= 0]] = 1
            times = np.array([answer.count(token) for token in range(VOCABULARY)])
            penalty = np.float32(0.25) * times + np.float32(0.5) * (times > 0)
            np.testing.assert_array_equal(
                adjustment.penalty[row, node], np.float32(penalty) - np.float32(BANNED * banned)
            )
            repeated = np.array([token in written for token in range(VOCABULARY)])
            np.testing.assert_array_equal(adjustment.repetition[row, node], np.where(repeated, np.float32(1.25), 1))
            np.testing.assert_array_equal(adjustment.bias[row, node], np.eye(VOCABULARY, dtype=np.float32)[2] * 1.5)
