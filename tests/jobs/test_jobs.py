"""Batch jobs: that every answer is the one it would get alone, and what a stop leaves behind."""

import json
import pathlib

import numpy as np
import pytest
from speller import DYNAMIC, SPELLER

from eagle_jax.api import Model
from eagle_jax.jobs import Defaults, Job, merge, processes
from eagle_jax.jobs.journal import Journal, entries
from eagle_jax.jobs.lines import lines_of
from eagle_jax.jobs.manifest import fingerprint
from eagle_jax.jobs.output_parts import part_path
from eagle_jax.scheduling import offline

LETTERS = "abcdefghijklmnopqrsuvwxyz"
ASKED = dict(batch_size=4, **DYNAMIC)


def written(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: pathlib.Path, rows: list[dict | str]) -> pathlib.Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def answered(inputs: list[pathlib.Path], output: pathlib.Path, model: Model = SPELLER, **more) -> bytes:
    """The output of a job that nobody disturbs."""
    with Job(inputs, output, **more) as begun:
        begun.run(model, **ASKED)
        assert begun.merge() == []
    return output.read_bytes()


@pytest.fixture
def questions(tmp_path) -> pathlib.Path:
    rows = [{"id": f"q{i}", "prompt": letter} for i, letter in enumerate(LETTERS[::2])]
    return write(tmp_path / "questions.jsonl", rows)


def test_two_rows_of_one_id_are_refused_before_anything_is_answered(tmp_path):
    first = write(tmp_path / "a.jsonl", [{"id": 1, "prompt": "a"}, {"prompt": "b"}, {"id": "1", "prompt": "c"}])
    second = write(tmp_path / "b.jsonl", [{"prompt": "b"}, "no row", {"custom_id": 1, "body": {"prompt": "a"}}])
    with pytest.raises(ValueError, match=r"a.jsonl:1 and b.jsonl:3 have the same id 1; give each row its own"):
        Job([first, second], tmp_path / "out.jsonl")
    assert not list(tmp_path.glob("out*"))
    with Job([first], tmp_path / "out.jsonl") as job:
        assert job.rows == 3


def test_rows_that_failed_are_counted_again_after_a_start(tmp_path):
    rows = [{"id": 1, "prompt": ""}, {"id": 2, "prompt": "ab", "max_tokens": 2}]
    with Job([write(tmp_path / "in.jsonl", rows)], tmp_path / "out.jsonl") as job:
        assert job.run(SPELLER, **ASKED).failed == 1
    with Job([tmp_path / "in.jsonl"], tmp_path / "out.jsonl") as job:
        tally = job.run(SPELLER, **ASKED)
    assert (tally.before, tally.failed_before, tally.failed) == (2, 1, 0)


def test_a_stop_at_any_moment_changes_nothing(questions, tmp_path, monkeypatch):
    """The part is cut at every byte of two lines, and after every few rows the job is begun again."""
    expected = answered([questions], tmp_path / "undisturbed.jsonl")
    output = tmp_path / "answers.jsonl"
    part = part_path(output, 0, 1)
    asked: list[int] = []

    def watched(model, requests, *others, **options):
        asked.extend(request.index for request in requests)
        return run(model, requests, *others, **options)

    run = offline.run
    with Job([questions], output) as begun:
        begun.run(SPELLER, **ASKED)
    whole = part.read_bytes()
    assert [number for number, _ in entries(part)] != sorted(number for number, _ in entries(part)), "in order already"
    lines = whole.splitlines(keepends=True)
    for cut in range(len(lines[0]) + len(lines[1]) + 1):
        part.write_bytes(whole[:cut])
        journal = Journal(part)
        journal.close()
        left = b"".join(lines[: sum(cut >= len(b"".join(lines[:n])) for n in (1, 2))])
        assert part.read_bytes() == left
    part.write_bytes(b"".join(lines[:3]) + lines[3][:-9] + b"\0" * 40 + b"\n" + b"".join(lines[4:]))  # a lost page
    monkeypatch.setattr(offline, "run", watched)
    with Job([questions], output) as begun:
        assert begun.run(SPELLER, **ASKED).before == 3
        assert begun.merge() == []
    assert output.read_bytes() == expected and len(asked) == len(lines) - 3 and not part.exists()
    with Job([questions], output) as again:
        assert again.complete and again.run(SPELLER).before == len(lines) and len(asked) == len(lines) - 3


def test_an_interrupted_merge_is_made_up_for(questions, tmp_path):
    expected = answered([questions], tmp_path / "answers.jsonl")
    part_path(tmp_path / "answers.jsonl", 0, 1).write_bytes(b"left behind by a kill after the renaming")
    assert Job([questions], tmp_path / "answers.jsonl").complete
    assert not part_path(tmp_path / "answers.jsonl", 0, 1).exists()
    assert (tmp_path / "answers.jsonl").read_bytes() == expected


def test_hosts_answer_their_share_and_the_last_one_merges(questions, tmp_path):
    expected = answered([questions], tmp_path / "alone.jsonl")
    output = tmp_path / "answers.jsonl"
    with Job([questions], output, host=1, hosts=2) as second:
        assert second.run(SPELLER, **ASKED).rows == 6
        assert second.merge() == [f"{part_path(output, 0, 2)} does not exist"]
    with Job([questions], output, host=0, hosts=2) as first:
        assert merge(output) == [f"{part_path(output, 0, 2)} lacks 7 of its 7 rows"]
        first.run(SPELLER, **ASKED)
        assert first.merge() == [] and second.merge() == []
    assert output.read_bytes() == expected and merge(output) == []
    with pytest.raises(ValueError, match="hosts was 2 and is 1 now; give the same, or name another output"):
        Job([questions], output)


def test_something_else_is_not_mixed_in(questions, tmp_path, monkeypatch):
    output = tmp_path / "answers.jsonl"
    made = {"target": "1234"}
    Job([questions], output, made_with=made).__exit__()
    with pytest.raises(ValueError, match="answers.jsonl was begun with other settings: target was 1234 and is 5"):
        Job([questions], output, made_with={"target": "5"})
    with pytest.raises(ValueError, match="other settings: max_new_tokens was 256 and is 9 now; give"):
        Job([questions], output, made_with=made, defaults=Defaults(max_new_tokens=9))
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="EAGLE_JAX_OPS was not set and is xla now"):
        patch.setenv("EAGLE_JAX_OPS", "xla")
        Job([questions], output, made_with=made)
    with Job([questions], output, made_with=made), pytest.raises(ValueError, match="another process is writing into"):
        Job([questions], output, made_with=made)
    questions.write_text(questions.read_text().replace("q1", "another"))
    with pytest.raises(ValueError, match="sha256 was"):
        Job([questions], output, made_with=made)


@pytest.fixture
def told(monkeypatch) -> list[list[int]]:
    """What process 0 tells the others before they begin."""
    seen: list[list[int]] = []

    def from_first_process(values: np.ndarray) -> np.ndarray:
        seen.append(values.tolist())
        return values

    monkeypatch.setattr(processes, "from_first_process", from_first_process)
    return seen


def test_who_cannot_begin_tells_the_others(questions, tmp_path, told, monkeypatch):
    output = tmp_path / "answers.jsonl"
    with Job([questions], output, one_model=True):
        assert told.pop()[:2] == [True, False]
        with pytest.raises(ValueError, match="another process is writing into"):
            Job([questions], output, one_model=True)
        assert told.pop()[:2] == [False, False]

    monkeypatch.setattr(processes, "any_process", lambda so: True)  # of the other process
    with pytest.raises(ValueError, match="the processes have different inputs; give each of them the same files"):
        Job([questions], output, one_model=True)


def test_options_that_are_refused_leave_nothing(questions, tmp_path):
    output = tmp_path / "answers.jsonl"
    with pytest.raises(ValueError, match="eagel"), Job([questions], output, made_with={"drafter": "eagel"}) as begun:
        begun.run(SPELLER, drafter="eagel")
    assert list(tmp_path.iterdir()) == [questions]
    with pytest.raises(KeyError), Job([questions], output, made_with={"drafter": "none"}) as begun:
        begun.run(SPELLER, drafter="none")
        raise KeyError
    with pytest.raises(ValueError, match="drafter was none and is eagle now"):
        Job([questions], output, made_with={"drafter": "eagle"})
    assert len(written(part_path(output, 0, 1))) == 13


def test_what_cannot_begin_is_one_sentence(questions, tmp_path):
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "mine.jsonl").write_text("precious")
    for inputs, output, more, error in (
        (["blank.jsonl"], "a.jsonl", {}, "no rows in .*blank.jsonl; expected one JSON object per line"),
        (["."], "a.jsonl", {}, "is not a regular file; expected one that can be read again after a crash"),
        (["questions.jsonl"], "mine.jsonl", {}, "exists and was not written by a batch job"),
        (["questions.jsonl"], "questions.jsonl", {}, "is both input and output; name another output"),
        (["questions.jsonl"], "a.jsonl", {"host": 2, "hosts": 2}, "host 2 of 2; expected a number from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=error):
            Job([tmp_path / name for name in inputs], tmp_path / output, **more)
    (tmp_path / "blank.jsonl").write_text("\ufeff\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no rows in"):
        Job([tmp_path / "blank.jsonl"], tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        Defaults(max_new_tokens=0)
    with pytest.raises(ValueError, match="does not exist; expected the parts of a batch job"):
        merge(tmp_path / "none.jsonl")
    assert (tmp_path / "mine.jsonl").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blank.jsonl", "mine.jsonl", "questions.jsonl"]


def test_a_fingerprint_tells_weights_apart(tmp_path):
    weights = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights.tobytes())
        (tmp_path / name / "README.md").write_text(name)
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").write_bytes((weights * 1.001).tobytes())
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")
    (tmp_path / "b" / "config.json").write_text("{}")
    assert fingerprint(tmp_path / "b" / "model.safetensors") != fingerprint(tmp_path / "a" / "model.safetensors")


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "pytorch_model.bin", "model.safetensors"])
def test_every_file_of_weights_counts(tmp_path, name):
    (tmp_path / name).write_bytes(b"one")
    before = fingerprint(tmp_path)
    (tmp_path / name).write_bytes(b"two")
    assert fingerprint(tmp_path) != before


def test_places_tell_files_of_one_name_apart(tmp_path):
    files = [tmp_path / "a" / "p.jsonl", tmp_path / "b" / "p.jsonl", tmp_path / "c.jsonl"]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        write(path, [{"prompt": "a"}])
    assert [line.place for line in lines_of(files)] == [f"{files[0]}:1", f"{files[1]}:1", "c.jsonl:1"]
