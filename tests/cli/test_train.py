"""`eagle-jax train`: what it shows, what it refuses, and once the whole way on a tiny target."""

import dataclasses
import json
import shutil
import signal

import pytest
import yaml
from test_documented import ROOT, blocks
from test_real import TOKENIZER

from eagle_jax import api
from eagle_jax.converters import load_head, load_target, save_target
from eagle_jax.testing import TINY, synthetic_pair
from eagle_jax.training.prepare import DataReport, Dropped


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(f"out: {tmp_path}/run\nsteps: 9\ndata: {{train: chats.jsonl}}\noptimizer: {{warmup: 2}}\n")
    return path


def test_it_tells_of_the_data_of_each_checkpoint_and_of_the_head(fake, run, settings):
    dropped = (Dropped("not JSON", 5, ("chats.jsonl:2", "chats.jsonl:3", "chats.jsonl:9")),)
    report = DataReport(kept=1200, cut=7, dropped=dropped, tokens=60000, answer_tokens=15000)
    fake.events = [
        api.events.Reading(1200),
        api.events.Prepared(report=report, rows=40, held_out=2, parameters=123456, coverage=0.98765, step=3),
        api.events.Updated(step=4, loss=1.5, agreement=(0.5,), tokens_per_second=None),
        api.events.Measured(step=9, loss=1.25, accepted_length=1.75, agreement=(0.5, 0.5)),
    ]
    shown = run("train", str(settings), "--set", "seed=5")
    assert shown.exit_code == 0 and fake.trained[0].seed == 5 and fake.trained[0].steps == 9
    told = " ".join(shown.stderr.split())
    for part in (
        "1,200 kept, 7 of them cut",
        "5 dropped: not JSON (chats.jsonl:2, chats.jsonl:3, chats.jsonl:9, ...)",
        "60,000, 25% of them the assistant's",
        "40 for training, 2 held out",
        "123,456 parameters",
        "tokens that make up 98.77% of the answers",
        "after update 3 of 9",
        "update 9: held out, loss 1.250, agreement 0.50 0.50, accepted length 1.75",
    ):
        assert part in told
    assert shown.stdout.startswith("The best head, of update 3, is in ")


def test_questions_are_decoded_at_the_end(fake, run, settings, tmp_path):
    questions = tmp_path / "q.jsonl"
    questions.write_text("\n".join(json.dumps({"question_id": i, "category": "a", "turns": ["Hi"]}) for i in (1, 2)))
    shown = run("train", str(settings), "--set", f"evaluation.questions={questions}")
    assert "2 questions: 2.50 tokens a step; accepted at depth 1, 2, ...: 1.00 0.50" in shown.stdout, shown.output
    kept = json.loads((tmp_path / "run" / "acceptance.json").read_text())
    assert kept["mean_accepted_length"] == 2.5 and kept["by_depth"] == [1.0, 0.5] and kept["steps"] == 2
    talks = tmp_path / "talks.jsonl"
    talks.write_text(json.dumps({"instruction": "Hi", "response": "Hello"}) + "\n")
    assert "1 questions: " in run("train", str(settings), "--set", f"evaluation.questions={talks}").stdout
    fake.done = 4
    shown = run("train", str(settings), "--set", f"evaluation.questions={questions}")
    assert "tokens a step" not in shown.stdout
    assert "Stopped after 4 of 9 updates; the same command continues." in shown.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_its_exit_code_once_the_checkpoint_is_there(fake, run, settings, monkeypatch, number):
    finished = api.events.Finished(head=settings.parent / "head", best=3, done=4, interrupted=number)
    monkeypatch.setattr(api, "train", lambda config, observe: finished)
    shown = run("train", str(settings))
    assert shown.exit_code == 128 + number and "Stopped after 4 of 9 updates" in shown.stderr
    assert shown.stdout.startswith("The best head, of update 3, is in ")


@pytest.mark.parametrize("content", ["", "\n", '{"instruction": "Hi", "response": ""}\n'])
def test_a_file_without_questions_is_refused_before_the_run(fake, run, settings, tmp_path, content):
    (tmp_path / "q.jsonl").write_text(content)
    shown = run("train", str(settings), "--set", f"evaluation.questions={tmp_path}/q.jsonl")
    assert shown.exit_code == 2 and "q.jsonl holds no question; expected one JSON object a line" in shown.stderr
    assert not fake.trained


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "optimizer.rte=1"), "optimizer.rte is not known; did you mean rate?"),
        (("--set", "steps"), "expected key=value"),
        (("--set", "evaluation.questions=none.jsonl"), "none.jsonl: no such file"),
        (("--processes", "2"), "--processes and --process are for several processes that meet; give --coordinator too"),
        (("--process", "0"), "give --coordinator too"),
    ],
)
def test_a_mistake_is_one_sentence(fake, run, settings, arguments, message):
    shown = run("train", str(settings), *arguments)
    assert shown.exit_code == 2 and message in shown.stderr and not fake.trained


def test_what_stops_a_run_is_one_sentence(fake, run, settings):
    fake.error = OSError("the checkpoint could not be written to run/checkpoints: no space left on device")
    shown = run("train", str(settings))
    assert shown.exit_code == 2 and shown.stderr.splitlines()[-1] == f"eagle-jax: {fake.error}"
    assert run("train", "none.yaml").stderr == "eagle-jax: none.yaml: no such file or directory\n"


@pytest.mark.proof
def test_the_documented_settings_train_a_head_that_decodes(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target, _ = synthetic_pair(dataclasses.replace(TINY, vocab_size=2048))
    save_target(target, tmp_path / "llama")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER / name, tmp_path / "llama")
    (tmp_path / "train.yaml").write_text(blocks((ROOT / "docs" / "training.md").read_text(), "yaml")[0])
    chats = [{"instruction": f"What is {i} + 1?", "response": f"It is {i + 1}."} for i in range(30)]
    (tmp_path / "answers.jsonl").write_text("\n".join(json.dumps(chat) for chat in chats))
    question = {"question_id": 1, "category": "a", "turns": ["What is 2 + 3?"]}
    (tmp_path / "question.jsonl").write_text(json.dumps(question))
    changes = ("steps=2", "batch=2", "optimizer.warmup=1", "data.length=32", "data.pack=false")
    changes += ("evaluation.depth=1", "evaluation.max_new_tokens=4")
    shown = run("train", "train.yaml", *(part for change in changes for part in ("--set", change)))
    assert shown.exit_code == 0, shown.output
    assert "30 kept" in shown.stderr and "1 questions: " in shown.stdout
    out = tmp_path / "runs" / "first"
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "head", "acceptance.json"} <= {p.name for p in out.iterdir()}
    assert yaml.safe_load((out / "config.yaml").read_text())["steps"] == 2
    load_head(out / "head", load_target(tmp_path / "llama"))
