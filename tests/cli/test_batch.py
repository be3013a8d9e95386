"""`eagle-jax batch`: files in, a file out, and what it says of it."""

import io
import json

import pytest
from rich.console import Console

from eagle_jax import api
from eagle_jax.cli import meter


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Hi {i}."}) + "\n" for i in range(5)))
    return path


def test_every_option_reaches_the_job(fake, run, prompts):
    sampling = ["--temperature", "1", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.1", "--seed", "3"]
    more = ["--max-new-tokens", "9", "--stop", "x", "--stop", "y", "--batch-size", "4", "--token-ids"]
    drafting = ["--drafter", "prompt-lookup", "--tree", "6,3,2"]
    shown = run("batch", "prompts.jsonl", "prompts.jsonl", "out/answers.jsonl", *sampling, *more, *drafting)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == "10 rows answered: out/answers.jsonl\n"
    assert "10 of 10 rows" in shown.stderr and "30 tokens; rows of the batch were busy 75% of the time" in shown.stderr
    ((job, request),) = fake.jobs
    assert job.defaults == api.Defaults(
        max_new_tokens=9, temperature=1.0, top_k=5, top_p=0.9, min_p=0.1, seed=3, stop=("x", "y")
    )
    assert job.token_ids and request == {"drafter": "prompt-lookup", "tree": (6, 3, 2), "batch_size": 4}

    assert run("batch", "prompts.jsonl", "prompts.jsonl", "out/answers.jsonl").exit_code == 2  # other options
    assert not job.ignore_unknown
    passing = run("batch", "prompts.jsonl", "more.jsonl", "--ignore-unknown")
    assert passing.exit_code == 0 and fake.jobs.pop()[0].ignore_unknown, passing.output
    changed = ["--target-config", '{"rope_theta": 7}']
    other = run("batch", "prompts.jsonl", "prompts.jsonl", "out/answers.jsonl", *sampling, *more, *drafting, *changed)
    assert other.exit_code == 2 and "target_config" in other.stderr
    again = run("batch", "prompts.jsonl", "prompts.jsonl", "out/answers.jsonl", *sampling, *more, *drafting)
    assert again.stdout == "out/answers.jsonl is complete; nothing was left to do\n" and len(fake.jobs) == 1


def test_two_hosts_and_a_merge(fake, run, prompts):
    one = run("batch", "prompts.jsonl", "a.jsonl", "--processes", "2", "--process", "1")
    assert one.exit_code == 0 and one.stdout == "2 rows answered: a.jsonl\n"
    assert "Not all of the 2 parts are complete here: a.jsonl.part-00000-of-00002 does not exist." in one.stderr
    early = run("batch", "--merge", "a.jsonl")
    assert early.exit_code == 2 and "part-00000-of-00002 does not exist; finish the job on these" in early.stderr
    other = run("batch", "prompts.jsonl", "a.jsonl", "--processes", "2", "--process", "0")
    assert other.exit_code == 0 and "parts" not in other.stderr
    assert len((prompts.parent / "a.jsonl").read_text().splitlines()) == 5
    assert run("batch", "--merge", "a.jsonl").stdout == "complete: a.jsonl\n"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["prompts.jsonl"], "only prompts.jsonl was given; expected IN.jsonl... and then OUT.jsonl"),
        (["none.jsonl", "a.jsonl"], "none.jsonl: no such file or directory"),
        (["prompts.jsonl", "a.jsonl", "--process", "1"], "--processes and --process go together"),
        (["prompts.jsonl", "a.jsonl", "--process", "2", "--processes", "2"], "host 2 of 2; expected a number from 0"),
        (["prompts.jsonl", "a.jsonl", "--one-model"], "--one-model is for several processes; give --coordinator too"),
        (["prompts.jsonl", "a.jsonl", "--coordinator", "here:1"], "processes=None, process=None at 'here:1'"),
        (
            ["prompts.jsonl", "a.jsonl", "--one-model", "--mesh", "local:auto", "--coordinator", "here:1"],
            "--mesh local:auto names the devices of one process, and --one-model shards over all; give one of the two",
        ),
        (["prompts.jsonl", "a.jsonl", "--temperature", "-1"], "temperature=-1.0 is negative"),
        (["--merge", "a.jsonl", "b.jsonl"], "--merge takes the output alone, and 2 files were given"),
        (["--merge", "a.jsonl"], "a.jsonl.job.json does not exist"),
    ],
)
def test_misuse_is_one_sentence(fake, run, prompts, arguments, sentence):
    shown = run("batch", *arguments)
    assert shown.exit_code == 2 and sentence in shown.stderr and len(shown.stderr.splitlines()) == 1
    assert not fake.jobs and not fake.loads and sorted(prompts.parent.iterdir()) == [prompts]


@pytest.mark.parametrize("mesh", ["data:2", "local:data:2"])
def test_each_host_has_its_own_devices(fake, run, prompts, monkeypatch, mesh):
    monkeypatch.setattr(api, "join", lambda *process, timeout: None)
    monkeypatch.setattr(api, "wait_for_others", lambda at: None)
    meeting = ("--coordinator", "here:1", "--processes", "1", "--process", "0")
    assert run("batch", "prompts.jsonl", "a.jsonl", "--mesh", mesh, *meeting).exit_code == 0
    assert fake.meshes == ["local:data:2"]


def test_how_far_it_is():
    tally = api.Tally(rows=5000, before=1000, answered=201, failed=3, tokens=8120)
    assert meter.line(tally, 10.0) == "1,204 of 5,000 rows, 3 failed, 812 tokens/s, 0:03:06 left"
    assert meter.line(api.Tally(rows=3, before=3), 0.0) == "3 of 3 rows"


def test_a_terminal_gets_a_bar(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(meter, "err", Console(file=shown, force_terminal=True, width=100))
    with meter.meter("Answering") as show:
        show(api.Tally(rows=5000, before=1000, answered=201, failed=3, tokens=8120))
    assert "Answering" in shown.getvalue() and "1204/5000" in shown.getvalue() and "tokens/s" in shown.getvalue()
