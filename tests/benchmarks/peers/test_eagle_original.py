"""What the original EAGLE is given, and what is said when it does not run."""

import dataclasses
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.common.chart import PUBLISHED
from benchmarks.common.synthetic import Shape, make
from benchmarks.common.turns import Answer, in_turns
from benchmarks.peers import against_peers, eagle_original
from benchmarks.peers.eagle_original import check_head, write_target
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
    check_head(head, target)
    with pytest.raises(ValueError, match="drafts 35 tokens, and the original knows no draft vocabulary for EAGLE-1"):
        check_head(head.trimmed(target, np.arange(5, 40)), target)


def test_a_head_for_other_layers_is_refused():
    def check(name: str) -> None:
        shape = Shape.of(name)
        head = Head3(params={}, config=shape.head, vocabulary=jnp.zeros(shape.head.draft_vocab_size, jnp.int32))
        check_head(head, types.SimpleNamespace(config=shape.target))

    check("small")
    check("8b")
    with pytest.raises(ValueError, match=r"the layers \(2, 2, 1\) of 4, and the original would give it \(1, 2\)"):
        check("tiny")


def test_a_program_that_does_not_start_says_why(tmp_path: pathlib.Path):
    model = make(Shape.of("small"), PUBLISHED, dtype="float32").model
    with pytest.raises(ValueError, match="holds no folder eagle; give the folder of a clone"):
        eagle_original.methods(tmp_path, model, 4, (60, 7, 10)).__enter__()
    (tmp_path / "eagle").mkdir()
    with pytest.raises(RuntimeError, match="the original EAGLE ended; its last line: .*No module named"):
        eagle_original.methods(tmp_path, model, 4, (60, 7, 10)).__enter__()


def test_something_has_to_be_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["against_peers"])
    with pytest.raises(ValueError, match="nothing to ask: give --questions with a file of questions, or --shape"):
        against_peers.main()


def test_methods_take_turns(capsys: pytest.CaptureFixture):
    asked: list[str] = []

    def method(name: str, seconds: float):
        def run(prompt: list[int]) -> Answer:
            asked.append(name)
            return Answer(prompt * 2, 4.0, 2.0, seconds * len(asked))

        return run

    timed = in_turns({"a 1": method("a", 1.0), "a 2": method("b", 2.0)}, [[1], [2, 3]], 2)
    assert "".join(asked) == "aabbaabb" * 2, "each runs once before it is timed"
    assert timed["a 1"].texts == [[1, 1], [2, 3, 2, 3]] and timed["a 1"].accepted == 2.0
    assert timed["a 1"].speed() == 6 / (2 + 6), "each prompt by its fastest repeat"
    assert against_peers.best_of(timed, "a") == "a 1" and against_peers.best_of(timed, "b") is None
    capsys.readouterr()
