"""Answers are decoded beside their prompts as transformers decodes both together, with many kinds of tokenizers."""

import dataclasses
import random
from collections.abc import Iterator

import pytest
from tokenizer_families import FAMILIES, family

from eagle_jax.api import Chat
from eagle_jax.chat.prompts import encode
from eagle_jax.requests.request import DUMMY_OPTIONS, PartialOutput, Request
from eagle_jax.requests.text_streamer import TextStreamer
from eagle_jax.scheduling.row import Row, result_of
from eagle_jax.text.detokenize import INCOMPLETE, MIN_CONTEXT, AnswerText, IncrementalDetokenizer, decode
from eagle_jax.text.token_bytes import token_bytes

TEXTS = [
    "The capital of France is Paris. The sea",
    "def f(x):\n    return x + 1\n\n",
    "naïve 😀😀 한국 €  two  spaces\n\n  x",
    "I don't know, do you?",
    "  two spaces first",
    "one 12 2026 three # it's",
]
LOSE_NOTHING = {"Gemma", "GGUF gpt2", "Llama 3", "Qwen 2", "GPT-2", "DeepSeek", "Falcon"}  # when decoded alone
NO_FORMS = {"WordPiece", "suffixes"}  # whose tokens' bytes depend on the tokens around them


def plain(name: str, ids: list[int]) -> str:
    """Transformers' own text."""
    return family(name).decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def cuts(name: str) -> Iterator[tuple[list[int], list[int]]]:
    """Prompts and answers: texts cut anywhere between two tokens, and after a chat's header or a begun answer."""
    tokenizer = family(name)
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        yield from ((ids[:cut], ids[cut:]) for cut in range(1 + len(text) % 3, len(ids), 3))
        bare = tokenizer(text, add_special_tokens=False)["input_ids"]
        chat = [{"role": "user", "content": "The sea"}]
        yield encode(tokenizer, chat, len(tokenizer), "the prompt"), bare
        if family(name).chat_template:
            begun = Chat([*chat, {"role": "assistant", "content": "is"}], continue_final_message=True)
            yield encode(tokenizer, begun, len(tokenizer), "the prompt"), [*bare, tokenizer.eos_token_id]


def streamed(name: str, prompt: list[int], ids: list[int], stop: tuple[str, ...], sizes: Iterator[int]) -> str:
    """The text of an answer that comes in pieces, which its chunks join to."""
    options = dataclasses.replace(DUMMY_OPTIONS, stop=stop)
    row = Row(Request(index=0, prompt=prompt, options=options, seed=0, sample=0))
    streamer, told = TextStreamer(0, family(name), prompt, stop), ""
    while not row.done:
        end = min(len(row.output.token_ids) + next(sizes), len(ids))
        row.output = PartialOutput(ids[:end], list(range(end)), None)
        if (hit := row.read(family(name)).stop_hit) is not None:
            row.output = row.output.first(hit.tokens)
        row.done = hit is not None or end == len(ids)
        result = result_of(row, family(name), 0) if row.done else None
        told += "".join(chunk.text for chunk in streamer.chunks(row.output, result, by_step=end % 2 == 0))
    assert told == result.text
    return told


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_what_transformers_adds_to_the_prompt(name):
    rng, alone = random.Random(7), 0
    sizes = iter(lambda: rng.randint(1, 5), 0)
    for prompt, ids in cuts(name):
        before, whole = plain(name, prompt), plain(name, prompt + ids)
        if not whole.startswith(before):  # the prompt ends within a character
            assert before.endswith(INCOMPLETE)
            before = decode(family(name), prompt).rstrip(INCOMPLETE)
        truth = whole[len(before) :]
        text, detokenizer = AnswerText(family(name), prompt, ()), IncrementalDetokenizer(family(name), prompt)
        text.read(ids)
        assert text.text == truth
        assert "".join(map(detokenizer.add, ids)) + detokenizer.rest == truth
        assert streamed(name, prompt, ids, (), sizes) == truth
        alone += truth.startswith(" ") and decode(family(name), ids) != truth
        begin = rng.randrange(len(truth)) if truth else 0
        for stop in (truth[begin : begin + 3], truth[:1], before[-1:] + truth[:2]):
            if stop:
                assert streamed(name, prompt, ids, (stop, "never there"), sizes) == truth.split(stop)[0]
    assert alone == 0 if name in LOSE_NOTHING else alone > 4  # answers that decoding them alone gets wrong


@pytest.mark.parametrize("name", FAMILIES)
def test_forms_know_what_each_token_adds(name):
    tokenizer = family(name)
    if name in NO_FORMS:
        with pytest.raises(ValueError, match="of unknown kind"):
            token_bytes(tokenizer, len(tokenizer))
        return
    spelt, prompt = token_bytes(tokenizer, len(tokenizer)), tokenizer("The sea")["input_ids"]
    for id_ in set(range(len(tokenizer))) - tokenizer.added_tokens_decoder.keys():
        added = IncrementalDetokenizer(tokenizer, prompt).extend([id_])
        assert spelt[id_].decode(errors="replace").rstrip(INCOMPLETE) == added


def test_forms_need_a_tokenizer_that_tells_how_it_decodes():
    class InPython:
        added_tokens_decoder: dict = {}

    with pytest.raises(ValueError, match="of unknown kind"):
        token_bytes(InPython(), 9)


@pytest.mark.parametrize("name", ["Llama 2", "Qwen 2", "WordPiece"])
def test_the_cost_of_a_token_does_not_grow(name):
    tokenizer = family(name)
    ids = tokenizer(" ".join(TEXTS) * 4, add_special_tokens=False)["input_ids"]
    ids += [tokenizer.eos_token_id] * 100  # as answers go on that may not end
    decoded: list[int] = []
    detokenizer = IncrementalDetokenizer(_Counting(tokenizer, decoded), ids)
    for id_ in ids:
        detokenizer.add(id_)
    assert len(ids) > 300 and max(decoded) <= 4 * MIN_CONTEXT


class _Counting:
    """A tokenizer that counts the tokens of every text that it decodes."""

    def __init__(self, tokenizer, counts: list[int]):
        self._tokenizer, self._counts = tokenizer, counts

    def __getattr__(self, name: str):
        return getattr(self._tokenizer, name)

    def decode(self, ids, **how) -> str:
        self._counts.append(len(ids))
        return self._tokenizer.decode(ids, **how)
