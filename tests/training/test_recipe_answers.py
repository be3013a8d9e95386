"""The target's own answers as conversations that a training run reads."""

import dataclasses
import json
import pathlib
import sys

import pytest
import transformers

sys.path.append(str(pathlib.Path(__file__).parents[2] / "recipes" / "gsm8k_pair"))

import answers_as_jsonl  # noqa: E402
import make_answers  # noqa: E402

from eagle_jax.loading.folders import PAIR  # noqa: E402
from eagle_jax.training import data  # noqa: E402

CHAT = [
    {"role": "user", "content": "A pen costs $2. What do 5 cost?"},
    {"role": "assistant", "content": "They cost 10."},
]


def test_answers_come_out_as_they_were_drawn_and_the_unfinished_are_marked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tokenizer = transformers.AutoTokenizer.from_pretrained(PAIR / "target")
    whole = data.tokenize(CHAT, tokenizer)
    assert whole.tokens[-1] == tokenizer.eos_token_id
    cut = dataclasses.replace(whole, tokens=whole.tokens[:-1], answer=whole.answer[:-1])
    make_answers.save(tmp_path / "answers.npz", [cut, whole])
    command = ["answers_as_jsonl.py", str(tmp_path / "answers.npz"), "--target", str(PAIR / "target")]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "answers.jsonl")])
    answers_as_jsonl.main()
    assert "2 conversations" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert lines == [{"messages": CHAT, "finish_reason": reason} for reason in ("length", "stop")]


@pytest.mark.parametrize(("more", "seeds"), [([], [0, 1]), (["--seed", "7"], [7, 8]), (["--skip", "1"], [1])])
def test_every_answer_is_drawn_with_a_seed_of_its_own(
    more: list[str], seeds: list[int], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    problems = [{"question": f"What is {i} + {i}?", "answer": f"{2 * i}\n#### {2 * i}"} for i in range(3)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, problems)))
    drawn: list[int] = []
    monkeypatch.setattr(make_answers.eagle_jax, "load", lambda target: None)
    monkeypatch.setattr(make_answers, "answer", lambda model, asked, seeds, *how: drawn.extend(seeds) or [])
    folders = ["--target", "target", "--out", str(tmp_path / "out.npz"), "--data", str(tmp_path / "train.jsonl")]
    monkeypatch.setattr(make_answers, "save", lambda out, examples: None)
    monkeypatch.setattr(sys, "argv", ["make_answers.py", *folders, "--held-out", "1", *more])
    make_answers.main()
    assert drawn == seeds
