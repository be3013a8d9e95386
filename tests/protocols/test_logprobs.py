"""Tokens as responses show them: each as it stands in the text, and where."""

import pytest
from sentencepiece_like import LLAMA2
from speller import SPECIAL, TOKENIZER

from eagle_jax.protocols.logprobs import Spelled
from eagle_jax.text.detokenize import decode


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LLAMA2])
def test_tokens_are_the_text_with_its_spaces(tokenizer):
    ids = tokenizer("ab a ab", add_special_tokens=False)["input_ids"]
    shown = Spelled(tokenizer).in_completion(ids, [-0.5] * len(ids))
    assert "".join(shown["tokens"]) == decode(tokenizer, ids) == "ab a ab"
    for token, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        assert "ab a ab"[offset:].startswith(token)
    content = Spelled(tokenizer).in_chat(ids, [-0.5] * len(ids))["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content) == b"ab a ab"


@pytest.mark.parametrize("tokenizer, end", [(TOKENIZER, SPECIAL[0]), (LLAMA2, "</s>")])
def test_what_adds_no_character_moves_no_offset(tokenizer, end):
    stop = tokenizer.convert_tokens_to_ids(end)
    ids = [stop, *tokenizer("a😀b", add_special_tokens=False)["input_ids"], stop]
    spelled, pieces = Spelled(tokenizer), []
    for token in ids:  # as a stream tells them
        pieces.append(spelled.in_completion([token], [-0.5]))
    whole = Spelled(tokenizer).in_completion(ids, [-0.5] * len(ids))
    assert whole["text_offset"] == [place for piece in pieces for place in piece["text_offset"]]
    assert whole["tokens"][0] == whole["tokens"][-1] == end
    assert whole["text_offset"][whole["tokens"].index("b")] == "a😀b".index("b") and whole["text_offset"][-1] == 3
    content = Spelled(tokenizer).in_chat(ids, [-0.5] * len(ids))["content"]
    assert content[0]["bytes"] == [] and None in [entry["bytes"] for entry in content]
    assert b"".join(bytes(entry["bytes"] or []) for entry in content) == "a😀b".encode()


def test_without_logprobs_or_a_tokenizer_there_is_nothing_to_spell():
    assert Spelled(TOKENIZER).in_chat([1], None) is None and Spelled(TOKENIZER).in_completion([1], None) is None
    assert Spelled(None).in_completion([1, 2], [-1.0, -2.0])["text_offset"] == [0, 0]
