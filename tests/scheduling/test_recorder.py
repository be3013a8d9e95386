"""An engine that records trees tells those that its answers came of."""

from speller import DYNAMIC, RANDOM, asked

from eagle_jax.methods.choice import drafter_for
from eagle_jax.requests.options import options_for
from eagle_jax.requests.request import Request
from eagle_jax.requests.ticket import chunks
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import shape_for
from eagle_jax.scheduling.engine import Engine
from eagle_jax.scheduling.recorder import Recorder

SAMPLED = {"temperature": 0.8, "seed": 3, "max_new_tokens": 24}


def test_each_step_comes_with_its_tree():
    with Engine(RANDOM, rows=2, max_tokens=48, steps=1, record=True, **DYNAMIC) as engine:
        both = engine.submit_all([asked("spell"), asked("Spell!")], **SAMPLED)
        told = list(chunks(both, by_step=True))
    for index in range(2):
        first, *steps = [chunk for chunk in told if chunk.index == index]
        assert first.step is None and len(both[index].result().token_ids) == SAMPLED["max_new_tokens"]
        root = first.token_ids[-1]
        for chunk in steps:
            step = chunk.step
            assert step.tokens[0] == root and [len(step.accepted)] == chunk.accepted_lengths
            assert [step.draws[node] for node in step.accepted] == chunk.token_ids
            assert [step.tokens[node] for node in step.accepted[1:]] == chunk.token_ids[:-1]
            root = chunk.token_ids[-1]


def test_a_row_that_ends_before_the_others_keeps_its_last_tree():
    lengths, values = [2, 24], dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    requests = [
        Request(index=i, prompt=[7, 8], options=options, seed=3, sample=0)
        for i, options in enumerate(options_for(2, max_new_tokens=lengths, **values))
    ]
    drafter = Recorder(drafter_for(RANDOM, "auto", DYNAMIC["tree"]))
    batch = Batch(RANDOM, drafter, shape_for(RANDOM, drafter, requests, 2), requests)
    batch.decode(4)
    short, long = batch.rows
    assert short.done and not long.done and int(batch.state.steps) == 4
    for row in batch.rows:
        [(number, step)] = row.output.trees.items()
        committed = [
            token for token, at in zip(row.output.token_ids, row.output.committed_at_step, strict=True) if at == number
        ]
        assert [step.draws[node] for node in step.accepted] == committed
