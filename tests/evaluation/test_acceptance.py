"""What a head is worth, over questions of several sizes."""

import dataclasses

import pytest

from eagle_jax.api import Model
from eagle_jax.evaluation.acceptance import measure_acceptance
from eagle_jax.evaluation.questions import Question
from eagle_jax.testing import TINY, synthetic_pair


class Letters:
    """A tokenizer with a token for each character."""

    chat_template = None

    def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) % 64 for character in text]}

    def get_vocab(self) -> dict[str, int]:
        return {chr(64 + token): token for token in range(64)}

    def decode(self, ids: list[int], **_: bool) -> str:
        return "".join(chr(64 + token) for token in ids)


@pytest.mark.proof
def test_short_and_long_questions_have_the_published_tree():
    """More than a batch of short ones, and one long one: by rule they would have a smaller one, of two sizes."""
    config = dataclasses.replace(TINY, vocab_size=64, max_position_embeddings=300)
    model = Model(*synthetic_pair(config, error=0.1), Letters(), stop_ids=(), context=300)
    questions = [Question(i, "a", ("short" * (30 if i == 8 else 1),)) for i in range(9)]
    found = measure_acceptance(model, questions, max_new_tokens=8, temperature=0.0, chat=False)
    assert (found.tokens, found.skipped) == (72, 0)
    assert len(found.by_depth) == 8 and found.mean_accepted_length == pytest.approx(1 + sum(found.by_depth))
    assert found.steps * found.mean_accepted_length == pytest.approx(72 - 9)
