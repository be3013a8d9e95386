import types

import pytest

from eagle_jax import api
from eagle_jax.evaluation import Prompter

TALK = [
    {"role": "user", "content": "abcdefgh"},
    {"role": "assistant", "content": "ijkl"},
    {"role": "user", "content": "mnop"},
]


@pytest.fixture
def prompter(monkeypatch):
    """A model that reads one token a character, and two more for each message of a chat."""

    def encode(tokenizer, prompt, vocab_size, where):
        text = prompt if isinstance(prompt, str) else "".join(f"<{m['role'][0]}{m['content']}" for m in prompt)
        return [ord(character) for character in text]

    monkeypatch.setattr("eagle_jax.evaluation.prompts.encode", encode)

    def make(context: int, **options) -> Prompter:
        model = object.__new__(api.Model)
        config = types.SimpleNamespace(vocab_size=128)
        for name, value in dict(context=context, tokenizer=None, target=types.SimpleNamespace(config=config)).items():
            object.__setattr__(model, name, value)
        return Prompter(model, **{"chat": True, "max_new_tokens": 10} | options)

    return make


def read(prompt) -> tuple[str, int]:
    return "".join(map(chr, prompt.ids)), prompt.cut


def test_what_fits_is_left_alone(prompter):
    assert read(prompter(32)(TALK)) == ("<uabcdefgh<aijkl<umnop", 0)
    assert read(prompter(32, chat=False)(TALK)) == ("abcdefgh\nijkl\nmnop", 0)


def test_what_does_not_fit_is_no_prompt(prompter):
    assert prompter(31)(TALK) is None


def test_cutting_leaves_the_end(prompter):
    assert read(prompter(31, cut=True)(TALK)) == ("<ubcdefgh<aijkl<umnop", 1)
    assert read(prompter(21, cut=True)(TALK)) == ("<u<al<umnop", 11)
    assert read(prompter(14, cut=True)(TALK)) == ("<uop", 14)


def test_where_cutting_does_not_help(prompter):
    assert prompter(12, cut=True)(TALK) is None
