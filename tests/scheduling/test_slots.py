"""More requests than rows: finished ones make room for the next, and nobody notices."""

import dataclasses

import jax
import numpy as np
import pytest
from speller import CONFIG, DYNAMIC, RANDOM, SPELLER, TOKENIZER, spelled_from

from eagle_jax.api import Model, generate
from eagle_jax.scheduling import batch, programs, scheduler
from eagle_jax.testing import synthetic_pair

RNG = np.random.default_rng(0)
SAMPLED = {"temperature": 0.9, "top_p": 0.99, **DYNAMIC}


@pytest.fixture
def batches(monkeypatch) -> list[batch.Batch]:
    """The batches that the test makes; each finds the memory of the ones before it free."""
    made: list[batch.Batch] = []

    class Watched(batch.Batch):
        def __init__(self, *args, **kwargs):
            assert all(array.is_deleted() for before in made for array in jax.tree.leaves(before.state))
            super().__init__(*args, **kwargs)
            made.append(self)

        def free(self):
            self.passes = int(self.state.steps)
            super().free()

    monkeypatch.setattr(scheduler, "Batch", Watched)
    return made


def test_answers_of_all_lengths_through_few_rows(batches):
    """The speller's answers end where its text does, so they are of any length from 1 to 35."""
    prompts = RNG.permutation(list("abcdefghijklmnopqrsuvwxyz")).tolist()
    told = []
    results = generate(
        SPELLER, prompts, max_new_tokens=40, batch_size=4, progress=lambda *n: told.append(n), drafter="none"
    )
    assert [result.token_ids for result in results] == [spelled_from(prompt, 40) for prompt in prompts]
    assert told == [(done, len(prompts)) for done in range(1, len(prompts) + 1)]
    for result in results:
        assert result.stats.accepted_lengths == [1] * (len(result.token_ids) - 1)
        assert result.finish_reason == "stop" and result.stats.prefill_seconds > 0

    (used,) = batches
    busy = sum(result.stats.steps for result in results)
    assert busy > 0.8 * 4 * used.passes, "rows stood idle"


def test_newcomers_of_a_large_batch_are_read_together(batches, monkeypatch):
    """An eighth of sixteen rows: two at a time, also where one of two waits alone at the end."""
    admitted, admit = [], batch.Batch.admit

    def counted(self, places, asks):
        admitted.append(len(places))
        admit(self, places, asks)

    monkeypatch.setattr(batch.Batch, "admit", counted)
    prompts = RNG.permutation(list("abcdefghijklmnopqrsuvwxyz") * 2).tolist()[:45]
    results = generate(SPELLER, prompts, max_new_tokens=40, batch_size=16, drafter="none")
    assert [result.token_ids for result in results] == [spelled_from(prompt, 40) for prompt in prompts]
    assert sum(admitted) == 45 - 16 and max(admitted) == 2 and admitted[-1] == 1
    (used,) = batches
    assert sum(result.stats.steps for result in results) > 0.7 * 16 * used.passes, "rows stood idle"


def test_sampled_answers_are_those_alone_and_nothing_is_compiled_twice():
    prompts = [RNG.integers(0, 200, size).tolist() for size in RNG.integers(1, 12, 11)]
    seeds = list(range(11))
    alone = [
        generate(RANDOM, prompt, max_new_tokens=9, seed=seed, logprobs=True, **SAMPLED)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    asked = dict(max_new_tokens=9, batch_size=2, logprobs=True, **SAMPLED)
    together = generate(RANDOM, prompts, seed=seeds, **asked)
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids == other.token_ids
        assert one.stats.accepted_lengths == other.stats.accepted_lengths
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    compiled = programs.compiled()
    generate(RANDOM, prompts[::-1], seed=seeds, **asked)
    generate(RANDOM, prompts[:2], seed=seeds[:2], **asked)  # nobody waits
    assert programs.compiled() == compiled


def test_an_answer_of_one_token_makes_room_at_once(batches):
    limits = [12, *[1] * 6, 3]
    results = generate(RANDOM, [[5]] * 8, max_new_tokens=limits, batch_size=2, drafter="none")
    assert [len(result.token_ids) for result in results] == limits
    (used,) = batches
    assert used.passes == 11, "the others waited for the long one, or it for them"


def test_long_requests_find_the_memory_of_short_ones_free(batches):
    config = dataclasses.replace(CONFIG, max_position_embeddings=300)
    target, _ = synthetic_pair(config, strength=0.6)
    model = Model(target, None, TOKENIZER, stop_ids=(), context=300)
    generate(model, [[5], [7] * 140, [6], [8] * 140], max_new_tokens=2, batch_size=2)
    assert [one.shape.slots for one in batches] == [128, 256]


def test_stop_strings_make_room_too():
    prompts = list("xwvusrqpo") * 2
    results = generate(SPELLER, prompts, stop="y", max_new_tokens=12, batch_size=2, **DYNAMIC)
    for prompt, result in zip(prompts, results, strict=True):
        text = TOKENIZER.decode(spelled_from(prompt, 12))
        assert result.text == text.split("y")[0], prompt
        assert result.finish_reason == ("stop" if "y" in text else "length")


def test_every_request_has_its_own_options():
    prompts = [RNG.integers(0, 200, size).tolist() for size in (3, 9, 4, 1, 7)]
    own = dict(
        max_new_tokens=[3, 9, 6, 9, 1], temperature=[0.0, 0.9, 0.7, 1.2, 0.0], top_p=[1.0, 0.9, 1.0, 0.8, 1.0],
        top_k=[0, 0, 5, 0, 0], min_p=[0.0, 0.0, 0.0, 0.01, 0.0], seed=[1, 2, 3, 4, 5],
    )  # fmt: skip
    together = generate(RANDOM, prompts, batch_size=2, **own, **DYNAMIC)
    for i, (prompt, result) in enumerate(zip(prompts, together, strict=True)):
        alone = generate(RANDOM, prompt, **{name: values[i] for name, values in own.items()}, **DYNAMIC)
        assert result.token_ids == alone.token_ids, own
    with pytest.raises(ValueError, match="2 values of top_p for 5 prompts; give one for all of them, or one each"):
        generate(RANDOM, prompts, top_p=[0.5, 0.6])
