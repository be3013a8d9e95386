"""Text out of tokens: stop strings and whole characters, against obvious ways to find them."""

import os
import string
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece_like import LLAMA2
from speller import SPECIAL, TOKENIZER

from eagle_jax.text.detokenize import (
    INCOMPLETE,
    MAX_CONTEXT,
    AnswerText,
    IncrementalDetokenizer,
    StopHit,
    decode,
    settled,
)

TOKENIZERS = {"byte level": TOKENIZER, "byte fallback": LLAMA2}
LETTERS = "ab😀é "  # few, so that strings meet

texts = st.text(LETTERS + "\n€한", max_size=12)
stops = st.lists(st.text(LETTERS + INCOMPLETE, min_size=1, max_size=4), max_size=3)
# mostly the tokens of some text, else anything, broken characters included
answers = {
    name: st.one_of(
        texts.map(lambda text, t=tokenizer: t(text, add_special_tokens=False)["input_ids"]),
        st.lists(st.integers(0, len(tokenizer) - 1), max_size=12),
        st.lists(st.sampled_from(tokenizer("a😀😀é", add_special_tokens=False)["input_ids"]), max_size=12),
    )
    for name, tokenizer in TOKENIZERS.items()
}
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


def _tokens_of_bytes(name: str) -> list[int]:
    """The token of each byte."""
    vocabulary = TOKENIZERS[name].get_vocab()
    if name == "byte fallback":
        return [vocabulary[f"<0x{byte:02X}>"] for byte in range(256)]
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}  # GPT-2's letters; other bytes have those from 256 on
    others = iter(range(256, 512))
    return [vocabulary[chr(byte if byte in plain else next(others))] for byte in range(256)]


def find_stop(tokenizer, ids: list[int], stop: Sequence[str]) -> StopHit | None:
    """The stop string of an answer that is read in one piece."""
    answer = AnswerText(tokenizer, (), stop)
    answer.read(ids)
    return answer.stop_hit


@each_tokenizer
@pytest.mark.parametrize("broken", [b"\xff", b"\x80", b"\xf0\x9f", b"\xe2\x82"])
@pytest.mark.parametrize("prompt", ["", "a", "a\xf0", "\xff" * 40])
def test_broken_bytes_are_decoded_with_few_tokens_before_them(name, broken, prompt):
    tokenizer = TOKENIZERS[name]
    of_byte = _tokens_of_bytes(name)
    begun, ids = [of_byte[ord(c)] for c in prompt], [of_byte[byte] for byte in broken] * 150
    detokenizer, lengths = IncrementalDetokenizer(tokenizer, begun), []
    before = decode(tokenizer, begun)
    for token in ids:
        assert detokenizer.add(token) == ""
        lengths.append(len(detokenizer._window))
    assert max(lengths) <= 2 * MAX_CONTEXT + 1, "decoding a token costs the same however long the answer is"
    whole = decode(tokenizer, [*begun, *ids])
    common = len(os.path.commonprefix([before, whole]))
    assert detokenizer.rest == whole[common:]
    after = [*ids, of_byte[ord("b")]]
    assert (
        detokenizer.would_add(after[-1]) == detokenizer.add(after[-1]) == decode(tokenizer, [*begun, *after])[common:]
    )
    assert detokenizer.rest == "" and detokenizer.add(of_byte[ord("c")]) == "c"


def test_without_a_tokenizer_there_is_no_text():
    assert decode(None, [1, 2]) == "" and find_stop(None, [1, 2], ["a"]) is None


def test_special_tokens_have_no_text():
    ids = TOKENIZER("ab")["input_ids"]
    assert decode(TOKENIZER, [*ids, *TOKENIZER.convert_tokens_to_ids(SPECIAL), *ids]) == "abab"
    assert decode(LLAMA2, LLAMA2("ab é")["input_ids"] + [2]) == "ab é"


@each_tokenizer
@given(texts)
def test_text_survives(name, text):
    ids = TOKENIZERS[name](text, add_special_tokens=False)["input_ids"]
    assert decode(TOKENIZERS[name], ids) == text


@each_tokenizer
@settings(max_examples=200)
@given(st.data())
def test_more_tokens_never_change_settled_text(name, data):
    tokenizer, ids, stop = TOKENIZERS[name], data.draw(answers[name]), data.draw(stops)
    whole = find_stop(tokenizer, ids, stop)
    final = decode(tokenizer, ids) if whole is None else whole.text
    before = ""
    for length in range(len(ids) + 1 if whole is None else whole.tokens):
        shown = settled(decode(tokenizer, ids[:length]), stop)
        assert final.startswith(shown) and shown.startswith(before)
        before = shown


def test_a_broken_character_does_not_take_back_the_one_before():
    """What the tokenizer itself does to a run of byte tokens that ends too early."""
    ids = LLAMA2("€€", add_special_tokens=False)["input_ids"]
    assert LLAMA2.decode(ids[:5]) != "€\ufffd"
    assert [decode(LLAMA2, ids[:length]) for length in range(2, 8)] == [
        "\ufffd",
        "\ufffd",
        "€",
        "€\ufffd",
        "€\ufffd",
        "€€",
    ]


def first_stop(tokenizer, ids: list[int], stop: Sequence[str]) -> StopHit | None:
    """Token by token, all stop strings at all places, but in a character that is not whole yet."""
    for tokens in range(1, len(ids) + 1):
        text = decode(tokenizer, ids[:tokens]).rstrip(INCOMPLETE)
        places = [i for i in range(len(text)) for s in stop if text[i : i + len(s)] == s]
        if places:
            return StopHit(text=text[: min(places)], tokens=tokens)
    return None


@each_tokenizer
@settings(max_examples=200)
@given(st.data())
def test_a_stop_string_is_found_as_soon_as_it_is_there(name, data):
    ids, stop = data.draw(answers[name]), data.draw(stops)
    assert find_stop(TOKENIZERS[name], ids, stop) == first_stop(TOKENIZERS[name], ids, stop)


def test_half_a_character_is_no_stop_string():
    """Nor may the answer depend on where passes end, which is within a character now and then."""
    ids = TOKENIZER("😀", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    for length in range(len(ids) + 1):
        assert find_stop(TOKENIZER, ids[:length], [INCOMPLETE]) is None


@each_tokenizer
@settings(max_examples=200)
@given(st.data())
def test_tokens_spelled_one_by_one_are_the_text(name, data):
    tokenizer, ids = TOKENIZERS[name], data.draw(answers[name])
    detokenizer, text = IncrementalDetokenizer(tokenizer), ""
    for count, token in enumerate(ids, start=1):
        text += detokenizer.add(token)
        assert text == decode(tokenizer, ids[:count]).rstrip(INCOMPLETE) and detokenizer.length == len(text)


def longest_safe(text: str, stop: Sequence[str]) -> str:
    """All of it but the longest end that is the beginning of a stop string."""
    text = text.rstrip("\ufffd")
    ends = [text[i:] for i in range(len(text) + 1)]
    held = next(end for end in ends if not end or any(s.startswith(end) and s != end for s in stop))
    return text[: len(text) - len(held)]


@settings(max_examples=300)
@given(st.text("ab" + "\ufffd", max_size=12), st.lists(st.text("ab", min_size=1, max_size=6), max_size=3))
def test_settled_holds_back_what_may_become_a_stop_string(text, stop):
    assert settled(text, stop) == longest_safe(text, stop)


@given(st.text(string.printable, max_size=20))
def test_without_stop_strings_whole_characters_are_settled(text):
    assert settled(text, ()) == text
    assert settled(text + "\ufffd\ufffd", ()) == text
