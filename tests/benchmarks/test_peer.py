"""What programs of others are given, and what is said when they do not run."""

import argparse
import dataclasses
import json
import pathlib
import sys
import types

import against_eagle
import against_gpt_fast
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peer import Worker, compared, write_target
from synthetic import Shape
from turns import Request, Timed, best_of, in_turns, ratios

from eagle_jax.config import Rope
from eagle_jax.converters import load_target
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY, synthetic_pair


def test_a_tied_target_gets_an_output_matrix_and_an_index(tmp_path: pathlib.Path):
    tied = LM.init(dataclasses.replace(TINY, num_hidden_layers=1, tie_word_embeddings=True), jax.random.key(0))
    write_target(tied, tmp_path)
    read = load_target(tmp_path)
    assert not read.config.tie_word_embeddings
    np.testing.assert_array_equal(read.params["lm_head"]["weight"], tied.params["embed_tokens"]["embedding"])
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index.values()) == {"model.safetensors"} and "model.embed_tokens.weight" in index


def test_an_eagle1_head_with_a_draft_vocabulary_is_refused():
    target, head = synthetic_pair(TINY, error=0.1)
    against_eagle.check_head(types.SimpleNamespace(head=head, target=target))
    with pytest.raises(ValueError, match="drafts 35 tokens, and the original knows no draft vocabulary for EAGLE-1"):
        against_eagle.check_head(types.SimpleNamespace(head=head.trimmed(target, np.arange(5, 40)), target=target))


def test_a_head_for_other_layers_is_refused():
    def both(name: str) -> types.SimpleNamespace:
        shape = Shape.of(name)
        head = Head3(params={}, config=shape.head, vocabulary=jnp.zeros(shape.head.draft_vocab_size, jnp.int32))
        return types.SimpleNamespace(head=head, target=types.SimpleNamespace(config=shape.target))

    against_eagle.check_head(both("small"))
    against_eagle.check_head(both("8b"))
    with pytest.raises(ValueError, match=r"the layers \(2, 2, 1\) of 4, and the original would give it \(1, 2\)"):
        against_eagle.check_head(both("tiny"))


def test_gpt_fast_is_told_the_dimensions():
    assert against_gpt_fast.described(Shape.of("8b").target)["n_local_heads"] == 8
    with pytest.raises(ValueError, match="gpt-fast knows heads of hidden_size / heads .* has head_dim 16"):
        against_gpt_fast.described(dataclasses.replace(TINY, head_dim=16))
    with pytest.raises(ValueError, match="rope 'linear'"):
        against_gpt_fast.described(dataclasses.replace(TINY, rope=Rope(theta=1e4, kind="linear", factor=2.0)))


def test_a_program_that_does_not_start_says_why(tmp_path: pathlib.Path):
    options = argparse.Namespace(python=sys.executable, packages=None, checkout=tmp_path)
    given = "gpt_fast.py", tmp_path, "{}", "float32", "eager", "float"
    with pytest.raises(ValueError, match=r"--checkout .* holds no generate\.py; give the folder of a clone"):
        Worker(options, *given)
    (tmp_path / "generate.py").write_text("raise ImportError('no torch here')")
    with pytest.raises(RuntimeError, match="gpt_fast ended, and the last .* no torch here"):
        Worker(options, *given)


def test_something_has_to_be_asked():
    options = argparse.Namespace(limit=None, shape=None, questions=None)
    with pytest.raises(ValueError, match="nothing to ask: give --questions with a file of questions, or --shape"):
        compared(options)


def test_methods_take_turns(capsys: pytest.CaptureFixture):
    asked: list[str] = []

    def method(name: str, seconds: float):
        def run(prompt: list[int]) -> Request:
            asked.append(name)
            return Request(prompt * 2, 2.0, seconds * len(asked), float("nan"))

        return run

    timed = in_turns({"a 1": method("a", 1.0), "a 2": method("b", 2.0)}, [[1], [2, 3]], 2)
    assert "".join(asked) == "aabb" + "aabbaabb" * 2, "all are warmed up before any, and each runs before it is timed"
    assert timed["a 1"].texts == [[1, 1], [2, 3, 2, 3]]
    assert timed["a 1"].speed() == 6 / (6 + 10), "each prompt by its fastest repeat"
    assert best_of(timed, "a") == "a 1" and best_of(timed, "b") is None
    table = ratios({name: Timed(one.requests) for name, one in timed.items()}, {"against a 1": "a 1"})
    assert table.splitlines()[2] == "| a 1 | 0 | 2.00 | 1.00 |"
    capsys.readouterr()
