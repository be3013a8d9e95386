"""Automata over tokens: the same texts as over bytes, however the tokenizer cuts and spells them."""

import random

import numpy as np
import pytest
from schemas import random_text
from sentencepiece_like import LLAMA2
from speller import TOKENIZER

from eagle_jax.structured.regex_automaton import regex_automaton
from eagle_jax.structured.token_automaton import TokenAutomaton, token_automaton
from eagle_jax.text.detokenize import decode
from eagle_jax.text.token_bytes import SPECIAL, token_bytes

TOKENIZERS = {"byte-level": TOKENIZER, "like SentencePiece": LLAMA2}


def follow(made: TokenAutomaton, ids: list[int]) -> int:
    """The state after tokens; their masks have to agree."""
    state = 0
    for id_ in ids:
        allowed = bool(made.masks[made.mask_of_state[state], id_ // 32] >> np.uint32(id_ % 32) & np.uint32(1))
        state = int(made.next[state, made.token_class[id_]])
        assert allowed == (state >= 0)
        if state < 0:
            return -1
    return state


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bytes_of_tokens_are_what_decoding_gives(name: str):
    tokenizer = TOKENIZERS[name]
    spelt = token_bytes(tokenizer, len(tokenizer) + 3)
    for text in ("abé ab a", "😀 ümlaut\n", "ab ab"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert b"".join(spelt[id_] for id_ in ids).decode().strip(" ") == decode(tokenizer, ids).strip(" ")
    assert spelt[-1] == b"" and all(spelt[id_][:1] == SPECIAL for id_ in tokenizer.all_special_ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_cut_of_a_matching_text_is_followed(name: str):
    tokenizer, rng = TOKENIZERS[name], random.Random(0)
    spelt = token_bytes(tokenizer, len(tokenizer))
    stop = tokenizer.eos_token_id
    over_bytes = regex_automaton("(th|ab|😀|[a-f ]{2}é)*!?")
    made = token_automaton(over_bytes, spelt, [stop])
    by_bytes: dict[bytes, list[int]] = {}
    for id_, word in enumerate(spelt):
        by_bytes.setdefault(word, []).append(id_)
    for _ in range(50):
        left, ids = random_text(rng, over_bytes, 20).encode(), []
        while left:
            size = rng.choice([size for size in (1, 2, 3) if left[:size] in by_bytes and size <= len(left)])
            ids.append(rng.choice(by_bytes[left[:size]]))
            left = left[size:]
        assert follow(made, ids) >= 0 and follow(made, [*ids, stop]) >= 0
        assert follow(made, [*ids, *by_bytes[b"z"][:1]]) == -1 if b"z" in by_bytes else True
    [t] = by_bytes[b"t"] if b"t" in by_bytes else [None]
    assert t is None or follow(made, [t, stop]) == -1, "incomplete"


def test_no_ordinary_token_stands_for_a_special_one():
    spelt = token_bytes(TOKENIZER, len(TOKENIZER))
    assert sum(SPECIAL in word for word in spelt) == len(TOKENIZER.all_special_ids) + 2  # and the two that speak


def test_alternatives_are_all_followed():
    """outlines-core alone takes the first that is complete."""
    automaton = regex_automaton("a|ab|abc")
    state = 0
    for byte in b"abc":
        assert not automaton.final[0] and (state == 0 or automaton.final[state])
        state = automaton.next[state, byte]
    assert automaton.final[state]


def test_a_token_after_which_no_other_fits_is_not_allowed():
    made = token_automaton(regex_automaton("ax|b"), [b"a", b"b", b"c", b""], [3])  # no token has an x
    assert follow(made, [0]) == -1 and follow(made, [1, 3]) >= 0
    with pytest.raises(ValueError, match="no text of this model's tokens"):
        token_automaton(regex_automaton("ax"), [b"a", b"b", b"c", b""], [3])


@pytest.mark.parametrize("regex", ["(", "a(?=b)", r"\bfoo", "(a)\\1"])
def test_what_no_automaton_follows_is_refused(regex: str):
    with pytest.raises(ValueError, match=r"is not supported .*Rust's regex"):
        regex_automaton(regex)


def test_anchors_at_the_ends_say_nothing():
    assert len(regex_automaton("^ab$").next) == len(regex_automaton("ab").next)
    assert regex_automaton(r"a\$").next[1, ord("$")] >= 0
