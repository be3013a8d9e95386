"""Tokens as responses show them: each as it stands in the text, and where."""

import dataclasses
import random

import pytest
from sentencepiece_like import LLAMA2
from speller import SPECIAL, TOKENIZER

from eagle_jax.protocols.logprobs import TokenLogprobs
from eagle_jax.requests.request import DUMMY_REQUEST
from eagle_jax.requests.results import Chunk
from eagle_jax.scheduling.row import Row, result_of
from eagle_jax.text.detokenize import MIN_CONTEXT, IncrementalDetokenizer, decode


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LLAMA2])
def test_tokens_are_the_text_with_its_spaces(tokenizer):
    ids = tokenizer("ab a ab", add_special_tokens=False)["input_ids"]
    shown = TokenLogprobs(tokenizer).completion_format(ids, [-0.5] * len(ids))
    assert "".join(shown["tokens"]) == decode(tokenizer, ids) == "ab a ab"
    for token, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        assert "ab a ab"[offset:].startswith(token)
    content = TokenLogprobs(tokenizer).chat_format(ids, [-0.5] * len(ids))["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content) == b"ab a ab"


@pytest.mark.parametrize("tokenizer, end", [(TOKENIZER, SPECIAL[0]), (LLAMA2, "</s>")])
def test_what_adds_no_character_moves_no_offset(tokenizer, end):
    stop = tokenizer.convert_tokens_to_ids(end)
    ids = [stop, *tokenizer("a😀b", add_special_tokens=False)["input_ids"], stop]
    spelled, pieces = TokenLogprobs(tokenizer), []
    for token in ids:  # as a stream tells them
        pieces.append(spelled.completion_format([token], [-0.5]))
    whole = TokenLogprobs(tokenizer).completion_format(ids, [-0.5] * len(ids))
    assert whole["text_offset"] == [place for piece in pieces for place in piece["text_offset"]]
    assert whole["tokens"][0] == whole["tokens"][-1] == end
    assert whole["text_offset"][whole["tokens"].index("b")] == "a😀b".index("b") and whole["text_offset"][-1] == 3
    content = TokenLogprobs(tokenizer).chat_format(ids, [-0.5] * len(ids))["content"]
    assert content[0]["bytes"] == [] and None in [entry["bytes"] for entry in content]
    assert b"".join(bytes(entry["bytes"] or []) for entry in content) == "a😀b".encode()


def test_without_logprobs_or_a_tokenizer_there_is_nothing_to_spell():
    assert (
        TokenLogprobs(TOKENIZER).chat_format([1], None) is None
        and TokenLogprobs(TOKENIZER).completion_format([1], None) is None
    )
    assert TokenLogprobs(None).completion_format([1, 2], [-1.0, -2.0])["text_offset"] == [0, 0]


def chunks_of(ids: list[int], text: str, sizes: list[int]) -> list[Chunk]:
    """An answer in pieces of so many tokens; its text is shorter than its tokens where a stop string ended it."""
    row = Row(DUMMY_REQUEST, done=True)
    result = dataclasses.replace(result_of(row, None, 0), text=text, token_ids=ids, logprobs=[-0.5] * len(ids))
    chunks, begin = [], 0
    for size in sizes:
        part = ids[begin : begin + size]
        chunks.append(Chunk(index=0, text="", token_ids=part, result=None, logprobs=[-0.5] * len(part)))
        begin += size
    return [*chunks[:-1], dataclasses.replace(chunks[-1], result=result)]


def visible(tokenizer, prompt: list[int], ids: list[int], text: str) -> int:
    """Tokens before the first one whose text lies behind the answer's: all of the answer is decoded."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    for place, token_id in enumerate(ids):
        begin = detokenizer.length
        if detokenizer.add(token_id) and begin >= len(text):
            return place
    return len(ids)


@pytest.mark.parametrize("echoed", [False, True])
@pytest.mark.parametrize("tokenizer, end", [(TOKENIZER, SPECIAL[0]), (LLAMA2, "</s>")])
def test_tokens_of_a_stop_string_alone_are_left_out(tokenizer, end, echoed):
    """In the last piece: what was told before stays told."""
    rng, silent = random.Random(5), tokenizer.convert_tokens_to_ids(end)
    prompt = tokenizer("ab a")["input_ids"]
    ids = tokenizer(" ab😀a b thab", add_special_tokens=False)["input_ids"]
    ids[3:3], ids[-2:-2] = [silent], [silent]
    whole = decode(tokenizer, ids)
    for length in range(len(whole) + 1):
        sizes = [1]
        while sum(sizes) < len(ids):
            sizes.append(min(rng.randint(0, 4), len(ids) - sum(sizes)))
        count = visible(tokenizer, prompt, ids, whole[:length])
        spelled = TokenLogprobs(tokenizer, () if echoed else prompt)
        if echoed:
            spelled.completion_format(prompt, [-0.5] * len(prompt))
        told = []
        for chunk in chunks_of(ids, whole[:length], sizes):
            token_ids, logprobs, _ = spelled.next_tokens(chunk)
            spelled.completion_format(token_ids, logprobs)
            told.append(len(token_ids))
            assert len(logprobs) == len(token_ids)
        assert told == [*sizes[:-1], max(0, count - sum(sizes[:-1]))]


def test_the_last_piece_of_a_long_answer_costs_no_more_than_another():
    ids, decoded = TOKENIZER("ab a thab ", add_special_tokens=False)["input_ids"] * 40, []

    class Counting:
        def __getattr__(self, name: str):
            return getattr(TOKENIZER, name)

        def decode(self, ids, **how) -> str:
            decoded.append(len(ids))
            return TOKENIZER.decode(ids, **how)

    spelled, costs = TokenLogprobs(Counting()), []
    for chunk in chunks_of(ids, TOKENIZER.decode(ids), [2] * (len(ids) // 2)):
        decoded.clear()
        spelled.chat_format(*spelled.next_tokens(chunk))
        costs.append(sum(decoded))
    assert len(costs) > 100 and costs[-1] <= 2 * max(costs[:-1]) <= 16 * MIN_CONTEXT
