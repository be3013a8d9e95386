"""What a look inside the loop shows is what the loop does."""

import jax.numpy as jnp
import pytest
from jaxtyping import Array, Int
from speller import DYNAMIC, RANDOM, TOKENIZER

from eagle_jax import api
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import Plain
from eagle_jax.struct import pytree

PROMPT = TOKENIZER("spell")["input_ids"]
SAMPLED = {"temperature": 0.8, "seed": 3}


def test_accepted_nodes_and_draws_spell_the_answer():
    answer = api.generate(RANDOM, PROMPT, max_new_tokens=56, **SAMPLED, **DYNAMIC)
    seen = api.trace(RANDOM, PROMPT, steps=4, **SAMPLED, **DYNAMIC)
    assert len(seen) == 4 and [len(step.accepted) for step in seen] == answer.stats.accepted_lengths[:4]
    said = [step.tokens[node] for step in seen for node in step.accepted]
    assert [*said, seen[-1].draws[seen[-1].accepted[-1]]] == answer.token_ids[: len(said) + 1]
    for step in seen:
        assert len(step.tokens) == 8 and step.parents[0] == -1 and step.accepted[0] == 0
        assert all(step.parents[below] == above for above, below in zip(step.accepted, step.accepted[1:]))


def test_a_trace_ends_with_the_answer():
    steps = api.trace(RANDOM, list(range(3, 56)), steps=99, **DYNAMIC)
    assert sum(len(step.accepted) for step in steps) == RANDOM.context - 53 - 1


def test_a_trace_is_of_the_answer_that_was_asked_for():
    filtered = SAMPLED | {"top_k": 4, "max_new_tokens": 5}
    answer = api.generate(RANDOM, PROMPT, **filtered, **DYNAMIC)
    seen = api.trace(RANDOM, PROMPT, steps=99, **filtered, **DYNAMIC)
    assert [len(step.accepted) for step in seen] == answer.stats.accepted_lengths
    with pytest.raises(ValueError, match="the prompt has 56 tokens; the model's context is 56"):
        api.trace(RANDOM, [1] * 56, **DYNAMIC)
    with pytest.raises(ValueError, match="top_p=0.0 is outside"):
        api.time_parts(RANDOM, PROMPT, top_p=0.0, **DYNAMIC)


@pytree
class Twins(Plain):
    """Guesses the same token twice, side by side, and spells out the answer below the second."""

    answer: Int[Array, "t"]

    @property
    def shape(self) -> TreeShape:
        return TreeShape(nodes=5, depth=2)

    def propose(self, target, state, view, mode):
        one, two = (self.answer[view.length[0] + 1 - len(PROMPT) + i] for i in range(2))
        tokens = jnp.stack([view.root[0], one, one, two, jnp.asarray(-1, jnp.int32)])[None]
        parent, valid = jnp.array([[-1, 0, 0, 2, 0]], jnp.int32), jnp.array([[True, True, True, True, False]])
        return Tree(tokens=tokens, parent=parent, valid=valid, height=2), state


def test_twins_and_nodes_that_are_none():
    answer = api.generate(RANDOM, PROMPT, max_new_tokens=9, **DYNAMIC).token_ids
    seen = api.trace(RANDOM, PROMPT, drafter=Twins(jnp.asarray([*answer, 0, 0], jnp.int32)), max_new_tokens=7)
    assert [step.accepted for step in seen[:2]] == [[0, 1, 3]] * 2 and seen[0].valid == [True] * 4 + [False]


def test_the_closest_draw_is_the_token_that_came():
    answer = api.generate(RANDOM, PROMPT, max_new_tokens=6, **SAMPLED, **DYNAMIC)
    for place, token in enumerate(answer.token_ids):
        (best, high), (other, low) = api.closest_draws(RANDOM, PROMPT + answer.token_ids[:place], **SAMPLED)
        assert best == token != other and high >= low


@pytest.mark.matrix
@pytest.mark.parametrize("drafter", ["eagle", "prompt-lookup", "lookahead", "token-recycling", "hybrid"])
def test_parts_of_a_step(drafter: str):
    """Some drafters read what the target drew in their own tree, which is not there where drafting alone is timed."""
    parts = api.time_parts(RANDOM, PROMPT, drafter=drafter)
    assert parts.draft >= 0 and parts.verify > 0 and parts.step > 0
    assert parts.rest == max(parts.step - parts.draft - parts.verify, 0.0)


def test_shapes_are_those_of_the_drafters():
    assert api.tree_shape(RANDOM, "none") == api.tree_shape(RANDOM, "none", "eagle1")
    assert (api.tree_shape(RANDOM, "eagle", (8, 2, 2)).nodes, api.tree_shape(RANDOM, "eagle", "eagle1").depth) == (8, 5)
    with pytest.raises(ValueError, match="is not known"):
        api.tree_shape(RANDOM, "magic")
