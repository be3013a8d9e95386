"""Prompts: special tokens that begin a text, and what chat templates do."""

import json
import pathlib
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from speller import SPELLER, TOKENIZER, asked
from tokenizers import processors
from transformers import BatchEncoding, PreTrainedTokenizerFast

from eagle_jax.api import Chat, Text, encode, generate
from eagle_jax.chat.prompts import ChatTemplateError, split
from eagle_jax.text.tokenizers import tokenizer_in, with_template

SIZE = 272


def tokenizer(template: Any = None, **how: Any) -> PreTrainedTokenizerFast:
    """One that begins texts with a BOS token."""
    core = type(TOKENIZER.backend_tokenizer).from_str(TOKENIZER.backend_tokenizer.to_str())
    bos = core.token_to_id("<|user|>")
    core.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", bos)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<|user|>", chat_template=template, **how)


def test_a_text_gets_one_bos_whether_it_begins_with_it_or_not():
    own = tokenizer()
    once = encode(own, "ab", SIZE, "the prompt")
    assert once == [own.bos_token_id, *TOKENIZER("ab")["input_ids"]]
    assert encode(own, "<|user|>ab", SIZE, "the prompt") == once
    assert encode(own, Text("ab", special_tokens=False), SIZE, "the prompt") == once[1:]
    assert encode(own, Text("<|user|>ab", special_tokens=False), SIZE, "the prompt") == once
    assert encode(own, Text("<|user|><|user|>ab", special_tokens=False), SIZE, "the prompt") == [once[0], *once]


def test_what_a_template_reads_besides():
    template = "{{ messages[0].content }}{% if loud is defined and loud %}!{% endif %}"
    template += "{% if add_generation_prompt %}?{% endif %}"
    own = tokenizer(template)

    def text(**how: Any) -> str:
        return own.decode(encode(own, Chat(asked("a"), **how), SIZE, "the prompt"))

    assert text() == "a?" and text(template={"loud": True}) == "a!?"
    assert text(add_generation_prompt=False) == "a"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "add_generation_prompt", "conversation", "return_dict"])
def test_what_a_template_reads_is_not_how_it_is_applied(name: str):
    """Or a request could bring a program."""
    with pytest.raises(ValueError, match=f"the prompt sets {name} for the chat template; expected only what"):
        encode(
            TOKENIZER, Chat(asked("a"), template={name: "{% for i in range(10**9) %}{% endfor %}"}), SIZE, "the prompt"
        )


def test_an_answer_may_go_on_with_the_last_message():
    messages = [*asked("?"), {"role": "assistant", "content": "ab"}]
    on = generate(SPELLER, Chat(messages, continue_final_message=True), max_new_tokens=3)
    assert on.text == "cde"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ raise_exception('No!') }}", "does not fit the model's chat template: No!"),
        ("{% if %}", "does not fit the model's chat template"),
        ("{{ 1 // 0 }}", "template fails at the prompt (ZeroDivisionError: "),
        ("{{ 1 + messages }}", "template fails at the prompt (TypeError: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "template fails at the prompt (RecursionError: "),
        ({"a": "x", "b": "y"}, "needs one of the chat templates a, b, and none is the default; name one"),
    ],
)
def test_a_template_that_fails_says_so_in_a_sentence(template: Any, sentence: str):
    with pytest.raises(ChatTemplateError, match=re.escape(sentence)) as caught:
        encode(tokenizer(template), asked("?"), SIZE, "the prompt")
    assert "\n" not in str(caught.value)


def test_templates_from_elsewhere(tmp_path: pathlib.Path):
    TOKENIZER.save_pretrained(tmp_path)
    for name in ("chat_template.jinja", "chat_template.json"):
        (tmp_path / name).unlink(missing_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert not tokenizer_in(tmp_path).chat_template
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "beside"}))
    assert tokenizer_in(tmp_path).chat_template == "beside"

    (tmp_path / "own.jinja").write_text("\ufeffown")  # as Windows' editors write UTF-8
    assert with_template(tokenizer("old"), tmp_path / "own.jinja").chat_template == "own"
    assert with_template(tokenizer({"a": "x", "b": "y"}), "b").chat_template == "y"
    with pytest.raises(ValueError, match="chat_template='c' is not a file; expected .* one of the names a, b"):
        with_template(tokenizer({"a": "x", "b": "y"}), "c")
    with pytest.raises(ValueError, match="needs a tokenizer"):
        with_template(None, "c")


class Tensor:
    """What a torch tensor has that is looked at."""

    def __init__(self, values: Any):
        self._values = np.array(values)

    def __array__(self, *args: Any, **how: Any) -> np.ndarray:
        return self._values

    def tolist(self) -> Any:
        return self._values.tolist()


@pytest.mark.parametrize("array", [list, np.array, jnp.array, Tensor])
def test_what_tokenizers_return_is_a_prompt(array: Any):
    """Token ids of any library, and mappings with an attention mask, which tells padding on either side."""
    one, two = [5, 6, 7], [8, 9]
    batch = [one, [0, *two]]
    cases = [
        (array(one), [one], False),
        ([array(one), array(two)], [one, two], True),
        (array(batch), batch, True),
        (BatchEncoding({"input_ids": array(batch), "attention_mask": array([[1, 1, 1], [0, 1, 1]])}), [one, two], True),
        (BatchEncoding({"input_ids": array([*one, 0]), "attention_mask": array([1, 1, 1, 0])}), [one], False),
        (BatchEncoding({"input_ids": array([one])}), [one], True),
        ([BatchEncoding({"input_ids": array(ids)}) for ids in (one, two)], [one, two], True),
        ([BatchEncoding({"input_ids": array([ids])}) for ids in (one, two)], [one, two], True),
        ([{"input_ids": [one], "attention_mask": array([[False, True, True]])}], [one[1:]], True),
    ]
    if array is not list:
        cases += [
            ([array(token) for token in one], [one], False),
            ([array([one]), "th"], [one, TOKENIZER("th").input_ids], True),
        ]
    for given, expected, many in cases:
        items, is_list = split(given)
        assert [encode(TOKENIZER, item, SIZE, "the prompt") for item in items] == expected and is_list is many
    assert encode(TOKENIZER, BatchEncoding({"input_ids": array([one])}), SIZE, "the prompt") == one  # as engines do


def test_an_attention_mask_that_fits_no_ids():
    refused = {"attention_mask has 2 entries for 3": [1, 1], "attention_mask has type int": 1}
    for sentence, mask in refused.items():
        with pytest.raises(ValueError, match=sentence):
            split({"input_ids": [1, 2, 3], "attention_mask": mask})
    with pytest.raises(TypeError, match="the prompt is neither"):
        encode(TOKENIZER, {"input_ids": [[1], [2]]}, SIZE, "the prompt")
    with pytest.raises(ValueError, match="is empty"):
        encode(TOKENIZER, {"input_ids": [1], "attention_mask": [0]}, SIZE, "the prompt")
