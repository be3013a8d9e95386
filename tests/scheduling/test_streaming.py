"""`stream` gives the answers of `generate`, piece by piece and in whole characters."""

import collections

import pytest
from speller import DRAFTING, DYNAMIC, RANDOM, SPELLED, SPELLER, asked

from eagle_jax.api import Chunk, Result, generate, stream


def told(result: Result) -> tuple:
    """What does not depend on the clock."""
    return result.text, result.token_ids, result.finish_reason, result.logprobs, result.prompt_tokens


def check(chunks: list[Chunk], results: list[Result]) -> None:
    by_prompt = collections.defaultdict(list)
    for chunk in chunks:
        by_prompt[chunk.index].append(chunk)
    for index, result in enumerate(results):
        own = by_prompt[index]
        assert "".join(chunk.text for chunk in own) == result.text
        assert [token for chunk in own for token in chunk.token_ids] == result.token_ids
        assert [chunk.result for chunk in own[:-1]] == [None] * (len(own) - 1)
        assert told(own[-1].result) == told(result)
        # a character that is not whole yet is not shown, unless it never will be
        assert all("\ufffd" not in chunk.text or chunk.text in result.text for chunk in own)
        assert own[-1].result.stats.accepted_by_depth == result.stats.accepted_by_depth
    assert set(by_prompt) == set(range(len(results)))


@pytest.mark.parametrize("steps", [1, 3, 2**40])
@pytest.mark.parametrize("how", DRAFTING)
def test_the_same_answer_in_whole_characters(how, steps):
    chunks = list(stream(SPELLER, asked("?"), steps=steps, **DRAFTING[how]))
    check(chunks, [generate(SPELLER, asked("?"), **DRAFTING[how])])
    assert all("\ufffd" not in chunk.text for chunk in chunks)
    if steps == 1:
        assert len(chunks) == 1 + chunks[-1].result.stats.steps
    if how == "none" and steps == 1:
        assert [chunk.text for chunk in chunks if not chunk.text.isascii()] == ["😀", "€", "한"]


@pytest.mark.parametrize("new", range(7, 13))
def test_an_answer_that_ends_within_a_character(new):
    chunks = list(stream(SPELLER, asked("?"), max_new_tokens=new, **DYNAMIC))
    check(chunks, [generate(SPELLER, asked("?"), max_new_tokens=new, **DYNAMIC)])
    shown = "".join(chunk.text for chunk in chunks)
    assert shown == SPELLED[: len(shown.rstrip("\ufffd"))] + ("\ufffd" if 7 < new < 10 else "")


def test_bytes_that_are_no_text():
    settings = {"temperature": 0.9, "seed": 4, "max_new_tokens": 40, **DYNAMIC}
    result = generate(RANDOM, "one", **settings)
    assert "\ufffd" in result.text.rstrip("\ufffd")
    check(list(stream(RANDOM, "one", **settings)), [result])


def test_several_prompts_side_by_side():
    prompts = [asked("?"), "wxyz"]
    chunks = list(stream(SPELLER, prompts, max_new_tokens=12, **DYNAMIC))
    check(chunks, generate(SPELLER, prompts, max_new_tokens=12, **DYNAMIC))
    order = [chunk.index for chunk in chunks]
    assert order[:4] == [0, 1, 0, 1]
    ends = [index for index, chunk in enumerate(chunks) if chunk.result is not None]
    assert len(ends) == 2


def test_one_prompt_in_a_list_is_number_0():
    chunks = list(stream(SPELLER, ["ab"], max_new_tokens=4, **DYNAMIC))
    assert {chunk.index for chunk in chunks} == {0}
    assert "".join(chunk.text for chunk in chunks) == "cdef"


def test_logprobs_come_with_the_result():
    settings = {"max_new_tokens": 10, "temperature": 0.9, "logprobs": True, **DYNAMIC}
    check(list(stream(RANDOM, [1, 2, 3], **settings)), [generate(RANDOM, [1, 2, 3], **settings)])


def test_a_stream_can_be_left():
    chunks = stream(SPELLER, asked("?"), **DYNAMIC)
    assert next(chunks).text == "a"
    chunks.close()
    assert generate(SPELLER, asked("?"), **DYNAMIC).text == SPELLED
