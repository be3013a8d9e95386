"""`eagle-jax tune` on a stand-in: what it passes on, prints and keeps. tests/tuning/test_tuning.py measures."""

import json

import pytest

from eagle_jax import api


def test_a_table_for_each_batch_size_and_the_choices(fake, run):
    shown = run("tune", "./llama", "./eagle", "--batch-sizes", "2")
    assert shown.exit_code == 0 and fake.loads == [("./llama", "./eagle", None)]
    assert fake.kept == [fake.tuned.budget]
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["4,2,1", "2.25", "14.00", "321", "300", "chosen"] in lines
    assert ["plain", "1.00", "10.00", "200", "200"] in lines
    assert ["2", "4,2,1", "300", "1.50x"] in lines
    assert ["1", "75", "%", "12", "%"] in lines and ["2", "50", "%", "25", "%"] in lines
    assert "budgets.json, which --tree auto uses" in shown.stderr


def test_a_folder_that_cannot_be_written_is_told_of_before_anything_is_measured(fake, run, monkeypatch):
    def keep(budgets):
        raise PermissionError(13, "Permission denied", "/kept")

    monkeypatch.setattr(api, "keep_budgets", keep)
    shown = run("tune")
    assert shown.exit_code == 2 and "/kept: permission denied" in shown.stderr and not fake.requests


def test_json_has_all_that_was_found(fake, run):
    told = json.loads(run("tune", "--json").stdout)["tuned"][0]
    assert told["budget"]["tree"] == [4, 2, 1] and told["measured"] == {"plain": 200.0, "4,2,1": 300.0}
    assert told["expected"]["4,2,1"]["length"] == 2.25 and told["costs"]["verify_steps"] == [[1, 0.01], [4, 0.012]]


def test_prompts_of_a_file_are_asked_as_chats(fake, run, tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"question_id": 1, "category": "a", "turns": ["Hi.", "Ho."]}))
    assert run("tune", "--prompts", str(tmp_path / "asked.jsonl")).exit_code == 0
    assert fake.requests[-1][1]["prompts"] == [[{"role": "user", "content": "Hi."}]]


@pytest.mark.parametrize(
    "given, said",
    [
        (("--batch-sizes", "1,two"), "--batch-sizes '1,two'; expected whole numbers separated by commas"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl: no such file"),
        (("--drafter", "magic"), "'magic' is none of"),
    ],
)
def test_wrong_options_are_one_sentence(fake, run, given, said):
    shown = run("tune", *given)
    assert shown.exit_code == 2 and said in shown.stderr and not fake.kept


@pytest.mark.parametrize("command", [("tune", "./llama", "--ops"), ("inspect", "--ops")])
def test_the_table_of_operations_has_times_errors_and_reasons(fake, run, command):
    lines = [line.split() for line in run(*command).stdout.splitlines()]
    linear = ["linear", "8", "x", "4", "of", "float32"]
    assert [*linear, "xla", "2", "3", "0.0e+00"] in lines and [*linear, "cpu", "1", "2", "1.0e-07", "taken"] in lines
    assert [*linear, "gpu", "5.0e-01", "it", "is", "wrong"] in lines
    told = json.loads(run(*command, "--json").stdout)
    found = told["operations"] if command[0] == "tune" else told
    assert [one["candidate"] for one in found] == ["xla", "cpu", "gpu"]


def test_nothing_to_inspect(fake, run):
    shown = run("inspect")
    assert (
        shown.exit_code == 2
        and "nothing to inspect; name a folder, a .gguf file or a pair, or give --ops" in shown.stderr
    )
