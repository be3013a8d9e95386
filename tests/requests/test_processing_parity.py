"""Options that depend on the text against transformers' `LogitsProcessor`s: greedy, in float32, identical ids."""

import pathlib
from typing import Any

import pytest
from speller import DYNAMIC, RANDOM, TOKENIZER

from eagle_jax.api import generate
from eagle_jax.converters import save_target
from eagle_jax.requests.processing import bad_word_ids

pytestmark = pytest.mark.parity

NEW = 32
PROMPTS = ["one, two and ", "a longer prompt, this.", "xyab"]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # ours, and transformers'
    "repetition": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    "less than one": ({"repetition_penalty": 0.8}, {"repetition_penalty": 0.8}),
    "bias": ({"logit_bias": {40: 1.5, 70: -3.0}}, {"sequence_bias": {(40,): 1.5, (70,): -3.0}}),
    "stop and minimum": (
        {"stop_token_ids": list(range(100, 160)), "min_tokens": 6},
        {"eos_token_id": list(range(100, 160)), "min_new_tokens": 6},
    ),
    "bad words": ({"bad_words": ["th", "a b"]}, {"bad_words_ids": bad_word_ids(["th", "a b"], TOKENIZER, 272)}),
    "bias and repetition": (
        {"logit_bias": {40: 2.0}, "repetition_penalty": 1.2, "bad_words": ["e"]},
        {
            "sequence_bias": {(40,): 2.0},
            "repetition_penalty": 1.2,
            "bad_words_ids": bad_word_ids(["e"], TOKENIZER, 272),
        },
    ),
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder: pathlib.Path = tmp_path_factory.mktemp("random")
    save_target(RANDOM.target, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", CASES)
def test_identical_ids(theirs: Any, name: str):
    import torch

    ours, their_options = CASES[name]
    if "bad_words_ids" in their_options:
        their_options = their_options | {"bad_words_ids": [list(word) for word in their_options["bad_words_ids"]]}
    for prompt in PROMPTS:
        ids = TOKENIZER(prompt)["input_ids"]
        with torch.no_grad():
            how = {"eos_token_id": None} | their_options
            out = theirs.generate(torch.tensor([ids]), max_new_tokens=NEW, do_sample=False, pad_token_id=0, **how)
        expected = out[0, len(ids) :].tolist()
        for drafting in ({"drafter": "none"}, DYNAMIC):
            assert generate(RANDOM, ids, max_new_tokens=NEW, **drafting, **ours).token_ids == expected, prompt
