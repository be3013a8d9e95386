"""An engine that records trees tells those that its answers came of."""

from speller import DYNAMIC, RANDOM, asked

from eagle_jax.scheduling.engine import Engine
from eagle_jax.scheduling.ticket import chunks

SAMPLED = {"temperature": 0.8, "seed": 3, "max_new_tokens": 24}


def test_each_pass_comes_with_its_tree():
    with Engine(RANDOM, rows=2, max_tokens=48, steps=1, record=True, **DYNAMIC) as engine:
        both = engine.submit_all([asked("spell"), asked("Spell!")], **SAMPLED)
        told = list(chunks(both, by_step=True))
    for index in range(2):
        first, *passes = [chunk for chunk in told if chunk.index == index]
        assert first.step is None and len(both[index].result().token_ids) == SAMPLED["max_new_tokens"]
        root = first.token_ids[-1]
        for chunk in passes:
            step = chunk.step
            assert step.tokens[0] == root and [len(step.accepted)] == chunk.accepted_lengths
            assert [step.draws[node] for node in step.accepted] == chunk.token_ids
            assert [step.tokens[node] for node in step.accepted[1:]] == chunk.token_ids[:-1]
            root = chunk.token_ids[-1]
