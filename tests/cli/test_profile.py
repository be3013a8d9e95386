"""`eagle-jax profile` on a stand-in: what it passes on and prints; tests/inspection/test_profiling.py measures."""

import dataclasses
import json

from eagle_jax import api


def test_phases_and_their_shares(fake, run, tmp_path):
    shown = run("profile", "./llama", "./eagle", "--tree", "8,3,3", "--trace", str(tmp_path / "traces"))
    assert shown.exit_code == 0 and fake.loads == [("./llama", "./eagle", None)]
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["draft:", "first", "level", "1.000", "25", "%"] in lines and ["check:", "mlp", "3.000", "75", "%"] in lines
    assert "Step: 4.00 ms, 2.00 plain steps, for 2.50 tokens." in shown.stdout
    prompt, request = fake.requests[-1]
    assert prompt[0]["role"] == "user" and request["tree"] == (8, 3, 3) and request["folder"] == tmp_path / "traces"
    assert "ui.perfetto.dev" in shown.stderr and "overlap" not in shown.stdout


def test_phases_that_overlap_are_said_to(fake, run, monkeypatch):
    def overlapping(*args, **request):
        return dataclasses.replace(fake.profile(*args, **request), step=0.0039)

    monkeypatch.setattr(api, "profile", overlapping)
    assert "Phases sum to more than the step, since on several cores" in run("profile").stdout


def test_json_has_the_phases(fake, run):
    told = json.loads(run("profile", "--json", "--raw", "--prompt", "Hi.").stdout)
    assert told["phases"]["check: mlp"] == 0.003 and fake.requests[-1][0] == "Hi."


def test_a_tree_that_is_none_is_one_sentence(fake, run):
    shown = run("profile", "--tree", "8,3")
    assert shown.exit_code == 2 and "--tree '8,3' is not a tree" in shown.stderr and not fake.loads
