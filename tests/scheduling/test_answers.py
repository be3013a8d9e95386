"""`generate`: the forms of a prompt, the shape of what comes back, where answers end, and what is told about them."""

import dataclasses
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speller import (
    ASSISTANT,
    CONFIG,
    DRAFTING,
    DYNAMIC,
    END,
    RANDOM,
    SCRIPT,
    SPELLED,
    SPELLER,
    TOKENIZER,
    asked,
    spelled_from,
)

from eagle_jax.api import Result, generate
from eagle_jax.scheduling import programs

SAMPLED = {"temperature": 0.9, "top_p": 0.99, **DYNAMIC}
PROMPTS = ["one", asked("two"), [1, 2, 3, 4, 5], "a longer prompt, 33 tokens of it...", [7]]


def ids(results: list[Result]) -> list[list[int]]:
    return [result.token_ids for result in results]


def test_the_forms_of_a_prompt():
    by_text = generate(SPELLER, "xyab", max_new_tokens=5, **DYNAMIC)
    assert by_text.text == "cdefg"
    tokens = TOKENIZER("xyab")["input_ids"]
    for same in (tokens, tuple(tokens), np.array(tokens), jnp.array(tokens)):
        assert generate(SPELLER, same, max_new_tokens=5, **DYNAMIC).token_ids == by_text.token_ids
    chat = generate(SPELLER, [*asked("xyab"), {"role": "assistant", "content": "b"}, *asked("?")], **DYNAMIC)
    assert chat.text == SPELLED and chat.finish_reason == "stop"
    assert chat.token_ids == SCRIPT and chat.token_ids[-1] == END
    assert chat.prompt_tokens == len(TOKENIZER("<|user|>xyab<|assistant|>b<|user|>?<|assistant|>")["input_ids"])


def test_what_a_tokenizer_makes_is_a_prompt():
    templated = TOKENIZER.apply_chat_template(asked("?"), add_generation_prompt=True, return_dict=True)
    expected = generate(SPELLER, asked("?"), **DYNAMIC)
    assert generate(SPELLER, templated, **DYNAMIC).token_ids == expected.token_ids
    many = TOKENIZER.apply_chat_template([asked("?")] * 2, add_generation_prompt=True, return_dict=True)
    assert [result.text for result in generate(SPELLER, many, **DYNAMIC)] == [expected.text] * 2


def test_a_list_in_gives_a_list_out():
    mixed = ["ab", asked("?"), TOKENIZER("rs")["input_ids"], np.array([ASSISTANT])]
    results = generate(SPELLER, mixed, max_new_tokens=4, batch_size=2, **DYNAMIC)
    assert [result.text for result in results] == ["cdef", "abcd", "thuvw"[:5], "abcd"]
    [only] = generate(SPELLER, ["ab"], max_new_tokens=4, **DYNAMIC)
    assert only.token_ids == results[0].token_ids
    [row, other] = generate(SPELLER, np.array([[97, 98], [98, 99]]), max_new_tokens=4, **DYNAMIC)
    assert row.prompt_tokens == other.prompt_tokens == 2 and row.token_ids != other.token_ids


@pytest.mark.parametrize("how", DRAFTING)
def test_any_drafter_gives_the_same_answer(how):
    for prompt in PROMPTS[:2]:
        plain = generate(RANDOM, prompt, max_new_tokens=40, drafter="none")
        drafted = generate(RANDOM, prompt, max_new_tokens=40, **DRAFTING[how])
        assert (drafted.token_ids, drafted.text) == (plain.token_ids, plain.text)
        assert how == "none" or drafted.stats.steps < plain.stats.steps


def test_the_batch_size_changes_nothing_and_answers_keep_their_order():
    alone = [generate(RANDOM, prompt, max_new_tokens=12, **SAMPLED) for prompt in PROMPTS]
    for batch_size in (1, 2, 8):
        assert ids(generate(RANDOM, PROMPTS, max_new_tokens=12, batch_size=batch_size, **SAMPLED)) == ids(alone)
    assert ids(generate(RANDOM, PROMPTS, max_new_tokens=12, **SAMPLED)) == ids(alone)


def test_a_sampled_answer_is_plain_decodings_too():
    settings = {"max_new_tokens": 12, "temperature": 1.1, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 3}
    plain = generate(RANDOM, "one", drafter="none", **settings)
    drafted = generate(RANDOM, "one", **settings, **DYNAMIC)
    assert drafted.token_ids == plain.token_ids
    assert drafted.token_ids != generate(RANDOM, "one", max_new_tokens=12, **DYNAMIC).token_ids


def test_several_samples():
    single = generate(RANDOM, "one", max_new_tokens=12, **SAMPLED)
    three = generate(RANDOM, "one", max_new_tokens=12, num_samples=3, **SAMPLED)
    assert three[0].token_ids == single.token_ids
    assert len({tuple(answer.token_ids) for answer in three}) == 3

    nested = generate(RANDOM, PROMPTS[:2], max_new_tokens=12, num_samples=3, batch_size=2, **SAMPLED)
    assert [len(answers) for answers in nested] == [3, 3]
    assert ids(nested[0]) == ids(three)
    [[one], [two]] = [
        {tuple(answer.token_ids) for answer in generate(RANDOM, prompt, num_samples=2, **DYNAMIC)}
        for prompt in PROMPTS[:2]
    ]
    assert one != two  # greedy answers of one prompt are all the same


def test_one_seed_or_one_each():
    prompts = ["one", "one", "two"]
    each = ids(generate(RANDOM, prompts, seed=[5, 6, 7], max_new_tokens=8, batch_size=2, **SAMPLED))
    assert each == ids(
        [generate(RANDOM, p, seed=s, max_new_tokens=8, **SAMPLED) for p, s in zip(prompts, (5, 6, 7), strict=True)]
    )
    same = ids(generate(RANDOM, prompts, seed=5, max_new_tokens=8, batch_size=2, **SAMPLED))
    assert same[0] == same[1] == each[0] != each[1]


@pytest.mark.parametrize("new", [1, 2, 7])
@pytest.mark.parametrize("how", DRAFTING)
def test_max_new_tokens_is_exact(how, new):
    result = generate(RANDOM, "one", max_new_tokens=new, **DRAFTING[how])
    assert len(result.token_ids) == new and result.finish_reason == "length"
    assert result.token_ids == generate(RANDOM, "one", max_new_tokens=14, **DYNAMIC).token_ids[:new]


@pytest.mark.parametrize("how", DRAFTING)
def test_the_answer_ends_where_the_context_does(how):
    prompt = list(range(50))
    result = generate(RANDOM, prompt, max_new_tokens=2**40, **DRAFTING[how])
    assert len(result.token_ids) == RANDOM.context - len(prompt) and result.finish_reason == "length"
    assert len(generate(RANDOM, list(range(55)), **DRAFTING[how]).token_ids) == 1


@pytest.mark.parametrize("how", DRAFTING)
def test_a_stop_token_ends_the_answer_and_is_no_text(how):
    result = generate(SPELLER, "rsthuvw한", **DRAFTING[how])
    assert (result.text, result.token_ids[-1], result.finish_reason) == ("xyz.", END, "stop")
    at_the_limit = generate(SPELLER, "rsthuvw한", max_new_tokens=5, **DRAFTING[how])
    assert at_the_limit.token_ids == result.token_ids and at_the_limit.finish_reason == "stop"
    cut = generate(SPELLER, "rsthuvw한", max_new_tokens=4, **DRAFTING[how])
    assert cut.text == "xyz." and cut.finish_reason == "length"
    at_once = generate(SPELLER, "z.", **DRAFTING[how])
    assert (at_once.text, at_once.token_ids, at_once.finish_reason) == ("", [END], "stop")


def test_logprobs_are_the_targets():
    result = generate(RANDOM, [1, 2, 3], max_new_tokens=10, temperature=0.9, logprobs=True, **DYNAMIC)
    _, logits = jax.jit(lambda target, tokens: target(tokens))(RANDOM.target, jnp.array([[1, 2, 3, *result.token_ids]]))
    expected = jax.nn.log_softmax(logits[0])[np.arange(2, 12), np.array(result.token_ids)]
    np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)
    assert generate(RANDOM, [1, 2, 3], max_new_tokens=10, **DYNAMIC).logprobs is None


@pytest.mark.parametrize("how", DRAFTING)
def test_statistics(how):
    result = generate(RANDOM, "one", max_new_tokens=14, **DRAFTING[how])
    stats = result.stats
    assert stats.mean_accepted_length == pytest.approx(1 + sum(stats.accepted_by_depth))
    assert stats.steps * stats.mean_accepted_length == pytest.approx(len(result.token_ids) - 1)
    assert len(stats.accepted_lengths) == stats.steps and sum(stats.accepted_lengths) == len(result.token_ids) - 1
    assert all(math.isclose(share * stats.steps, round(share * stats.steps)) for share in stats.accepted_by_depth)
    assert sorted(stats.accepted_by_depth, reverse=True) == stats.accepted_by_depth
    if how == "none":
        assert (stats.steps, stats.mean_accepted_length, stats.accepted_by_depth) == (13, 1.0, [])
    assert stats.prefill_seconds > 0 and stats.decode_seconds > 0 and stats.compile_seconds >= 0
    assert stats.first_token_seconds > stats.prefill_seconds
    assert stats.tokens_per_second == pytest.approx(13 / stats.decode_seconds)


def test_seconds_to_the_first_token_count_the_wait_and_no_compiling():
    own = dataclasses.replace(RANDOM, stop_ids=(CONFIG.vocab_size,) * 7)  # as no other test has it: it is compiled here
    begun = time.perf_counter()
    first, second = (result.stats for result in generate(own, PROMPTS[:2], max_new_tokens=4, batch_size=1, **DYNAMIC))
    whole = time.perf_counter() - begun
    assert 0 < first.prefill_seconds < first.first_token_seconds < whole - first.compile_seconds
    waited = first.first_token_seconds + first.decode_seconds + second.prefill_seconds
    assert first.compile_seconds > 0 and waited < second.first_token_seconds < whole - first.compile_seconds


def test_statistics_of_an_answer_without_a_pass():
    stats = generate(RANDOM, "one", max_new_tokens=1, **DYNAMIC).stats
    assert stats.steps == 0 and stats.decode_seconds == 0
    assert math.isnan(stats.mean_accepted_length) and math.isnan(stats.tokens_per_second)


def test_progress_is_told_after_each_answer():
    told = []
    generate(RANDOM, PROMPTS, max_new_tokens=3, batch_size=2, progress=lambda *counts: told.append(counts), **SAMPLED)
    assert told == [(done, 5) for done in range(1, 6)]


def test_nothing_is_compiled_again_within_a_bucket():
    generate(RANDOM, "one", max_new_tokens=5, top_k=40, **SAMPLED)  # top-k asks for another program than none
    before = programs.compiled()
    again = generate(
        SPELLER, "something else", max_new_tokens=17, seed=8, stop="x", **(SAMPLED | {"temperature": 0.3, "top_k": 9})
    )
    assert programs.compiled() == before
    assert again.stats.compile_seconds == 0


def test_a_model_without_tokenizer_takes_token_ids():
    mute = dataclasses.replace(SPELLER, tokenizer=None)
    result = generate(mute, TOKENIZER("ab")["input_ids"], max_new_tokens=5, **DYNAMIC)
    assert (result.text, result.token_ids) == ("", spelled_from("b", 5))
