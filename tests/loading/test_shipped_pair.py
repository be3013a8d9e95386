"""The pair that comes with the package keeps the promise, drafts well, and says something."""

import pytest

import eagle_jax
from eagle_jax.api import with_head

QUESTIONS = [
    "Tom has 3 apples and buys 4 more. How many apples does he have?",
    "A train travels 60 miles in 2 hours. How fast does it travel?",
    "Anna reads 15 pages a day. How many pages does she read in 2 weeks, if she rests on Sundays?",
    "A box holds 24 pencils.",
]
PROMPTS = [[{"role": "user", "content": question}] for question in QUESTIONS]


@pytest.fixture(scope="module")
def pair() -> eagle_jax.Model:
    return eagle_jax.load(dtype="float32")


@pytest.mark.proof
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_seed_same_text_on_the_shipped_pair(pair, temperature):
    def answers(drafter, tree, model=pair):
        return eagle_jax.generate(
            model, PROMPTS, max_new_tokens=48, temperature=temperature, seed=[1, 2, 3, 4], drafter=drafter, tree=tree
        )

    plain = answers("none", "auto")
    eagle3 = with_head(pair, "eagle3")
    for model, tree, least in (
        (pair, "eagle1", 2.5),
        (pair, (60, 7, 10), 2.5),
        (pair, (6, 0.2), 2.4),  # no more than it is sure of
        (eagle3, (60, 7, 10), 2.5),
    ):
        drafted = answers("eagle", tree, model)
        assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
        assert [result.text for result in drafted] == [result.text for result in plain]
        passes = sum(result.stats.steps for result in drafted)
        committed = sum(result.stats.mean_accepted_length * result.stats.steps for result in drafted)
        assert committed / passes > least, "the shipped head hardly drafts"


def test_it_answers_in_words(pair):
    result = eagle_jax.generate(pair, PROMPTS[0], max_new_tokens=48, drafter="none")
    words = result.text.split()
    assert len(words) > 5 and result.text.isascii(), result.text
