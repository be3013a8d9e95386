"""Greedy token ids of the GGUF file that comes from the registry, ours and llama.cpp's: `make readers`.

Activations have 16 bits here and 8 in llama.cpp, so answers may part at a near draw, and nowhere else.
"""

import pathlib
import sys

import pytest

import eagle_jax
from benchmarks.peers import llama_cpp
from eagle_jax import api
from eagle_jax.loading.folders import DEFAULT_TARGET, download

pytest.importorskip("xllamacpp", reason="`make readers` installs it")
pytestmark = pytest.mark.parity

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three prime numbers.",
    "Translate to French: good morning.",
)
NEW_TOKENS, NEAR = 32, 0.1  # of logits: a draw is nearer than activations of 8 bits can tell


def test_ids_of_the_file(monkeypatch):
    monkeypatch.setenv("EAGLE_JAX_ACTIVATIONS", "int16")
    file = download(DEFAULT_TARGET)
    model = eagle_jax.load(DEFAULT_TARGET, dtype="float32")
    asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
    texts = [model.tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False) for one in asked]
    prompts = [list(model.tokenizer(text).input_ids) for text in texts]
    ours = eagle_jax.generate(model, prompts, max_new_tokens=NEW_TOKENS, temperature=0.0, drafter="none")
    python = pathlib.Path(sys.executable)
    with llama_cpp.methods(python, file, NEW_TOKENS, until_end=True, modes=["none"]) as methods:
        [run] = methods.values()
        theirs = [run(prompt).token_ids for prompt in prompts]
    parted = 0
    for prompt, one, other in zip(prompts, (answer.token_ids for answer in ours), theirs, strict=True):
        place = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), None)
        if place is not None:
            parted += 1
            (_, high), (_, low) = api.closest_draws(model, [*prompt, *one[:place]])
            assert high - low < NEAR, (place, one, other)
    assert parted <= len(QUESTIONS) // 2
