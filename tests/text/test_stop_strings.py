"""Stop strings end an answer at the first token that completes one, however many tokens come at once."""

import pytest
from speller import DRAFTING, DYNAMIC, END, RANDOM, SCRIPT, SPELLED, SPELLER, TOKENIZER, asked, spelled_from

from eagle_jax.api import generate, stream
from eagle_jax.text.detokenize import decode

# stop strings -> (text of the answer to a chat, last character that is generated)
CASES = {
    "one": ("k", "abcdefg😀hij", "k"),
    "at the very first token": ("a", "", "a"),
    "over several tokens": ("cdefg", "ab", "g"),
    "over a character of several tokens": ("g😀h", "abcdef", "h"),
    "ending with a character of several tokens": ("g😀", "abcdef", "😀"),
    "a line end": (["\n"], "abcdefg😀hijk€lmnopq", "\n"),
    "inside a token": ("h", "abcdefg😀", "h"),
    "several, the earlier counts": (["xyz", "k", "m"], "abcdefg😀hij", "k"),
    "several, one beginning like another": (["bcx", "cd", "bcde"], "ab", "d"),
    "two completed by one token": (["😀h", "h"], "abcdefg", "h"),
    "the last one before the end": (".", "abcdefg😀hijk€lmnopq\nrsthuvw한xyz", "."),
    "half a character, wherever a pass ends": ("\ufffd", SPELLED, None),
    "none of it": (["A", "<|end|>", "ba"], SPELLED, None),
}


@pytest.mark.parametrize("how", DRAFTING)
@pytest.mark.parametrize("case", CASES)
def test_the_answer_ends_there(case, how):
    stop, text, last = CASES[case]
    result = generate(SPELLER, asked("?"), stop=stop, **DRAFTING[how])
    tokens = SCRIPT if last is None else SCRIPT[: SCRIPT.index(TOKENIZER(last)["input_ids"][-1]) + 1]
    assert (result.text, result.token_ids, result.finish_reason) == (text, tokens, "stop")
    if result.stats.steps:
        assert result.stats.mean_accepted_length == pytest.approx(1 + sum(result.stats.accepted_by_depth))


def test_every_answer_of_a_batch_ends_by_itself():
    prompts = ["ab", asked("?"), "x", "한"]
    results = generate(SPELLER, prompts, stop=["fg", "z"], batch_size=2, **DYNAMIC)
    assert [result.text for result in results] == ["cde", "abcde", "y", "xy"]
    assert results[0].token_ids == spelled_from("b", 5)


def test_length_still_counts():
    short = generate(SPELLER, asked("?"), stop="k", max_new_tokens=6, **DYNAMIC)
    assert (short.text, short.finish_reason) == ("abcdef", "length")
    exact = generate(SPELLER, asked("?"), stop="f", max_new_tokens=6, **DYNAMIC)
    assert (exact.text, exact.finish_reason) == ("abcde", "stop")


def test_an_answer_in_bytes_that_are_no_text():
    whole = generate(RANDOM, "one", max_new_tokens=14, drafter="none")
    stop = next(character for character in whole.text[3:] if character != "\ufffd")
    tokens = next(n for n in range(1, 15) if stop in decode(TOKENIZER, whole.token_ids[:n]))
    for how in DRAFTING.values():
        cut = generate(RANDOM, "one", max_new_tokens=14, stop=stop, **how)
        assert cut.token_ids == whole.token_ids[:tokens]
        assert cut.text == whole.text[: whole.text.index(stop)]


def test_logprobs_end_with_the_tokens():
    result = generate(RANDOM, [1, 2, 3], max_new_tokens=10, temperature=0.9, logprobs=True, **DYNAMIC)
    stop = next(character for character in result.text[2:] if character != "\ufffd")
    cut = generate(RANDOM, [1, 2, 3], max_new_tokens=10, temperature=0.9, logprobs=True, stop=stop, **DYNAMIC)
    assert len(cut.token_ids) == len(cut.logprobs) < 10
    assert cut.logprobs == result.logprobs[: len(cut.logprobs)]


@pytest.mark.parametrize("how", DRAFTING)
@pytest.mark.parametrize("case", CASES)
def test_nothing_of_a_stop_string_is_streamed(case, how):
    stop, text, _ = CASES[case]
    chunks = list(stream(SPELLER, asked("?"), stop=stop, **DRAFTING[how]))
    so_far = ""
    for chunk in chunks:
        so_far += chunk.text
        assert text.startswith(so_far)
    assert so_far == text
    assert [token for chunk in chunks for token in chunk.token_ids] == chunks[-1].result.token_ids
    assert chunks[-1].result.text == text


def test_the_end_token_is_no_stop_string():
    assert END in generate(SPELLER, asked("?"), stop="never", **DYNAMIC).token_ids
