"""Steps of a head in vLLM and here are compared as long as the texts are alike."""

import sys

import pytest

from benchmarks.peers import vllm_steps
from eagle_jax import api

# Answers as vLLM does that decodes like the toy pair, whose answers are given, with one step more a token.
STAND_IN = """#!{python}
import json, sys
print("true", flush=True)
for line in sys.stdin:
    prompt, new_tokens = json.loads(line)
    print(json.dumps([{ids}[:new_tokens], new_tokens + {more}]), flush=True)
"""


@pytest.fixture(scope="module")
def model():
    return api.load("toy", dtype="bfloat16")


@pytest.fixture
def run(model, tmp_path, monkeypatch, capsys):
    def run(ids, more):
        python = tmp_path / "python"
        python.write_text(STAND_IN.format(python=sys.executable, ids=ids, more=more))
        python.chmod(0o755)
        questions = tmp_path / "questions.jsonl"
        questions.write_text('{"question_id": 1, "category": "math", "turns": ["2 + 2?"]}\n')
        given = ["--questions", str(questions), "--vllm", str(python), "--new-tokens", "8"]
        monkeypatch.setattr(vllm_steps.eagle_jax, "load", lambda *_, **__: model)
        monkeypatch.setattr(sys, "argv", ["vllm_steps.py", *given])
        return vllm_steps.main(), capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def answer(model):
    result = api.generate(model, [{"role": "user", "content": "2 + 2?"}], max_new_tokens=8, tree=(4, 3, 1))
    return result.token_ids, result.stats.steps


def test_same_steps_for_the_same_text(run, answer):
    ids, steps = answer
    code, printed = run(ids, steps - len(ids))
    assert code == 0 and f"| all |  | {len(ids)} | {steps} | {steps} |" in printed


def test_more_steps_for_the_same_text_are_seen(run, answer):
    ids, steps = answer
    code, printed = run(ids, steps - len(ids) + 1)
    assert code == 1 and f"| {steps + 1} | {steps} |" in printed


def test_texts_that_part_at_once_are_not_compared(run, answer):
    with pytest.raises(ValueError, match="no two answers begin alike"):
        run([token + 1 for token in answer[0]], 0)


def test_texts_part_at_their_first_difference():
    assert vllm_steps.same_start([1, 2, 3], [1, 2, 4, 5]) == 2
    assert vllm_steps.same_start([1, 2], [1, 2, 4]) == 2
    assert vllm_steps.same_start([], [1]) == 0
