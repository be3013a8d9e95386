"""An answer's text is what its tokens add to the prompt's, as transformers decodes both."""

from typing import Any

import pytest
from spaced import BOS, EMOJI, SPACED, TOKENIZER, WORDS, added, plain
from speller import DYNAMIC

from eagle_jax.api import Chat, Result, encode, generate, stream

CHAT = [{"role": "user", "content": "ab"}]
PROMPTS = {
    "raw": "ab a",
    "ids": TOKENIZER("b")["input_ids"],
    "chat": CHAT,
    "continued": Chat([*CHAT, {"role": "assistant", "content": "é"}], continue_final_message=True),
    "special tokens alone": [BOS],
}
SAMPLED = dict(temperature=1.0, max_new_tokens=10, **DYNAMIC)  # one program serves all of these tests
WORDY = dict(allowed_token_ids=WORDS, ignore_eos=True, **SAMPLED)


def ids_of(prompt: Any) -> list[int]:
    return encode(TOKENIZER, prompt, 272, "the prompt")


def streamed(prompt: Any, **how: Any) -> tuple[str, Result]:
    chunks = list(stream(SPACED, prompt, **how))
    return "".join(chunk.text for chunk in chunks), chunks[-1].result


def test_generate_and_stream_say_what_transformers_says():
    alone = 0
    for prompt in PROMPTS.values():
        for seed in range(3):
            text, result = streamed(prompt, seed=seed, **WORDY)
            assert text == result.text == added(ids_of(prompt), result.token_ids)
            assert text == generate(SPACED, prompt, seed=seed, **WORDY).text
            alone += text != plain(result.token_ids)
    assert alone > 1  # answers that begin with a space, which decoding them alone loses


@pytest.mark.parametrize("name", PROMPTS)
def test_forms_are_matched_by_the_text(name):
    prompt = PROMPTS[name]
    forms = {" ab": {"regex": " ab"}, "ab": {"choices": ["ab"]}, " é": {"choices": [" é"]}, "éb": {"regex": "éb"}}
    for expected, form in forms.items():
        text, result = streamed(prompt, **form, **SAMPLED)
        assert text == result.text == expected == added(ids_of(prompt), result.token_ids)
        assert result.finish_reason == "stop"


def test_stop_strings_are_looked_for_in_the_answer_alone():
    """One that begins in the prompt is none; the space before the first word counts."""
    prompt = next(prompt for prompt in ("ab a", "b", "é", "a b", "ab") if streamed(prompt, **WORDY)[0].startswith(" "))
    whole, _ = streamed(prompt, **WORDY)
    found = {whole[begin : begin + size] for begin in range(len(whole)) for size in (1, 2, 3)} | {"b" + whole[:1]}
    for stop in sorted(found):
        text, result = streamed(prompt, stop=stop, **WORDY)
        assert text == result.text == whole.split(stop)[0]


def test_an_answer_may_complete_the_prompts_last_character():
    options = SAMPLED | {"allowed_token_ids": EMOJI[3:], "max_new_tokens": 1}
    text, result = streamed([*ids_of("a"), *EMOJI[:3]], **options)
    assert result.token_ids == EMOJI[3:] and text == result.text == "😀"


@pytest.mark.parametrize("how", [{}, {"drafter": "none", "tree": "auto"}])
def test_the_name_of_a_special_token_ends_an_answer_there(how: dict[str, Any]):
    """Such a token has no text that a stop string could be found in."""
    options = WORDY | {"allowed_token_ids": [0, *WORDS[:6]], "seed": 1} | how
    _, whole = streamed("ab", **options)
    text, result = streamed("ab", stop=["<unk>", "never"], **options)
    assert 0 in whole.token_ids[1:]
    assert result.token_ids == whole.token_ids[: whole.token_ids.index(0) + 1] and result.finish_reason == "stop"
    assert text == result.text == added(ids_of("ab"), result.token_ids)
