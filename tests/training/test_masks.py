"""What the mask covers, family by family, as text."""

import numpy as np
import pytest
from families import CHATML, QWEN3, family

from eagle_jax.training.masks import Example, tokenize

CHAT = [
    {"role": "user", "content": "Hello there, how are you?"},
    {"role": "assistant", "content": "I am well."},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "It is 5, naïve reader 🙂."},
]
SYSTEM = {"role": "system", "content": "Be brief."}


def masked(tokenizer, chat) -> tuple[str, list[str]]:
    """The rendered text, and the stretches of it that the mask covers."""
    example = tokenize(chat, tokenizer)
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    np.testing.assert_array_equal(example.tokens, encoded["input_ids"])
    covered = np.zeros(len(text) + 1, bool)
    for (first, last), counts in zip(encoded["offset_mapping"], example.answer, strict=True):
        covered[first:last] |= bool(counts)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], covered]).astype(int)))
    return text, [text[first:last] for first, last in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("vicuna", " I am well.</s>", " It is 5, naïve reader 🙂.</s>"),
        ("llama-2", " I am well. </s>", " It is 5, naïve reader 🙂. </s>"),
        ("llama-3", "I am well.<|eot_id|>", "It is 5, naïve reader 🙂.<|eot_id|>"),
        ("chatml", "I am well.<|im_end|>", "It is 5, naïve reader 🙂.<|im_end|>"),
        ("qwen-3", "I am well.<|im_end|>", "It is 5, naïve reader 🙂.<|im_end|>"),
        ("ours", "I am well.<|end|>", "It is 5, naïve reader 🙂.<|end|>"),
    ],
)
def test_the_mask_covers_the_answers_and_what_ends_them(name, first, second):
    tokenizer = family(name)
    _, got = masked(tokenizer, CHAT)
    assert got == [first, second]
    if name != "ours":  # our own template takes a system message for a user's
        text, got = masked(tokenizer, [SYSTEM, *CHAT])
        assert got == [first, second] and "Be brief." in text


def test_an_answer_may_hold_what_the_question_or_the_template_says():
    chat = [
        {"role": "user", "content": "5"},
        {"role": "assistant", "content": "5<|im_end|>\n<|im_start|>user\n5"},
        {"role": "user", "content": "5"},
        {"role": "assistant", "content": "5"},
    ]
    _, got = masked(family("chatml"), chat)
    assert got == ["5<|im_end|>\n<|im_start|>user\n5<|im_end|>", "5<|im_end|>"]


def test_spaces_that_the_template_trims_do_not_matter():
    chat = [CHAT[0], {"role": "assistant", "content": "\n I am well. \n"}]
    assert masked(family("llama-3"), chat)[1] == ["I am well.<|eot_id|>"]
    assert masked(family("chatml"), chat)[1] == ["\n I am well. \n<|im_end|>"]


def test_an_answer_that_the_template_rewrites_is_refused():
    chat = [CHAT[0], {"role": "assistant", "content": "<think>Hm.</think>\n\nI am well."}, *CHAT[2:]]
    with pytest.raises(ValueError, match="changes the text of an answer"):
        tokenize(chat, family("qwen-3"))


def test_marks_and_offsets_agree():
    marked = family("chatml")
    content = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    assert content in CHATML
    marked.chat_template = CHATML.replace(
        content,
        "{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}",
    )
    by_marks, by_offsets = tokenize(CHAT, marked), tokenize(CHAT, family("chatml"))
    np.testing.assert_array_equal(by_marks.tokens, by_offsets.tokens)
    np.testing.assert_array_equal(by_marks.answer, by_offsets.answer)


def test_what_cannot_be_masked_says_why():
    tokenizer = family("chatml")
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template; name a file with one as data.chat_template"):
        tokenize(CHAT, tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if false %}{% generation %}{% endgeneration %}{% endif %}"
    with pytest.raises(ValueError, match="marks no token as the assistant's"):
        tokenize(CHAT, tokenizer)
    tokenizer.chat_template = QWEN3 + "{{ raise_exception('only one turn') }}"
    with pytest.raises(ValueError, match="the chat template rejects it: only one turn"):
        tokenize(CHAT, tokenizer)


def test_of_several_templates_the_default_one_counts():
    tokenizer, alone = family("chatml"), family("chatml")
    tokenizer.chat_template = {"default": CHATML, "tool_use": "{% generation %}{% endgeneration %}"}
    got, expected = (tokenize(CHAT, one) for one in (tokenizer, alone))
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_array_equal(got.answer, expected.answer)


def test_an_example_is_what_a_row_is_made_of():
    example = tokenize(CHAT[:2], family("ours"))
    assert isinstance(example, Example) and example.tokens.dtype == np.int32 and example.answer.dtype == bool
