import json

import pytest
from talks import answer, conversation

from eagle_jax.evaluation.answers import from_line, to_record
from eagle_jax.evaluation.store import Folder, answer_file, read_answers, read_run
from eagle_jax.jsonl import to_line

TALK = conversation(81, "writing", "eagle:60,7,10", answer(2, 3), answer())
SETTINGS = {"methods": {"plain": {"nodes": 1, "depth": 0}, "eagle:60,7,10": {"nodes": 60, "depth": 8}}, "seed": 0}


def test_a_line_comes_back_as_it_was():
    fields = to_record(TALK)
    assert from_line(to_line(fields), "here") == TALK
    assert list(fields) == ["question_id", "category", "answer_id", "model_id", "choices", "tstamp"]
    choice = fields["choices"][0]
    assert choice["decoding_steps"] == [2, 0] and choice["new_tokens"] == [6, 1] and choice["accept_lengths"] == [2, 3]


def test_lines_of_earlier_versions_do_not_tell_what_was_spent():
    fields = to_record(TALK)
    del fields["choices"][0]["spent"]
    assert [one.spent for one in from_line(to_line(fields), "here").answers] == [(), ()]


def broken(change) -> str:
    fields = to_record(TALK)
    change(fields)
    return json.dumps(fields)


@pytest.mark.parametrize(
    "line, sentence",
    [
        ('{"question_id": 81, ', "here: not an answer; expected a JSON object"),
        ("[]", "here: not an answer"),
        (broken(lambda f: f.pop("category")), "here: 'category' is missing"),
        (broken(lambda f: f["choices"].clear()), "here: not an answer"),
        (broken(lambda f: f["choices"][0].pop("token_ids")), "here: 'token_ids' is missing; expected an answer that"),
        (
            broken(lambda f: f["choices"][0].update(wall_time=["1"] * 2)),
            "here: wall_time must be a list with one float",
        ),
        (broken(lambda f: f["choices"][0]["turns"].pop()), "must have one entry a turn each"),
        (broken(lambda f: f["choices"][0].update(accept_lengths=[2, "3"])), "here: accept_lengths must hold a list of"),
        (broken(lambda f: f["choices"][0].update(accept_lengths=5)), "here: accept_lengths must hold a list of whole"),
        (broken(lambda f: f["choices"][0].update(token_ids=[[1], [2.5]])), "here: token_ids must hold lists of whole"),
        (broken(lambda f: f["choices"][0].update(spent=[[[4, 1, 2]], []])), "here: spent must hold lists of nodes"),
        (broken(lambda f: f["choices"][0].update(spent=[[5], []])), "here: spent must hold lists of nodes"),
        (broken(lambda f: f.update(question_id=[81])), "here: question_id must be a whole number or a string"),
        (broken(lambda f: f["choices"][0]["accept_lengths"].pop()), "here: 1 accept_lengths for 2 decoding_steps"),
    ],
)
def test_what_is_no_answer_is_said(line, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_line(line, "here")


def test_a_run_goes_on_after_a_kill_within_a_line(tmp_path):
    with Folder(tmp_path / "run", SETTINGS, {"command": "it"}) as folder:
        folder.append(TALK)
    file = answer_file(folder.path, TALK.method)
    assert file.name == "eagle_60_7_10.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + to_line(to_record(TALK))[:57])
    assert read_answers(file).unfinished == 57

    with Folder(folder.path, SETTINGS, {"command": "another"}) as again:
        pass
    assert file.read_bytes() == whole and again.answered == {(TALK.method, 81)}
    assert (
        len(again.notes) == 1
        and "ended within a line, as after a crash; its 1 complete lines are kept" in again.notes[0]
    )
    assert read_run(folder.path)["command"] == "it"
    with Folder(folder.path, SETTINGS, {}) as whole:
        assert whole.notes == []


def test_other_settings_are_refused_and_nothing_changes(tmp_path):
    with Folder(tmp_path, SETTINGS, {}) as folder:
        folder.append(TALK)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    sentence = "begun with other settings: seed was 0 and is 1 now; give the same, or name another folder"
    with pytest.raises(ValueError, match=sentence):
        Folder(tmp_path, SETTINGS | {"seed": 1}, {})
    with pytest.raises(
        ValueError, match=r"methods was plain \(1 x 0\), eagle:60,7,10 \(60 x 8\) and is plain \(1 x 0\) now"
    ):
        Folder(tmp_path, SETTINGS | {"methods": {"plain": {"nodes": 1, "depth": 0}}}, {})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_folders_that_are_no_runs(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="has files but no run.json"):
        Folder(tmp_path, SETTINGS, {})
    with pytest.raises(ValueError, match="has no run.json"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="run.json is not JSON"):
        read_run(tmp_path)
    for wrong in (
        "{}",
        "[]",
        '{"settings": []}',
        '{"settings": {"methods": {}}}',
        '{"settings": {"methods": {"a": 1}}}',
    ):
        (tmp_path / "run.json").write_text(wrong)
        with pytest.raises(ValueError, match="was not written by `eagle-jax eval`"):
            read_run(tmp_path)
        with pytest.raises(ValueError, match="was not written by `eagle-jax eval`"):
            Folder(tmp_path, SETTINGS, {})


def test_a_run_that_answered_nothing_begins_anew(tmp_path):
    Folder(tmp_path, SETTINGS, {})
    for name in ("traces.json", "report.html"):
        (tmp_path / name).write_text("{}")
    assert Folder(tmp_path, SETTINGS | {"seed": 1}, {}).answered == set()
    assert read_run(tmp_path)["settings"]["seed"] == 1 and not (tmp_path / "traces.json").exists()


def test_a_line_within_the_file_is_not_thrown_away(tmp_path):
    with Folder(tmp_path, SETTINGS, {}) as folder:
        folder.append(TALK)
    file = answer_file(tmp_path, TALK.method)
    file.write_bytes(b"{half a line\n" + file.read_bytes())
    with pytest.raises(ValueError, match=r"eagle_60_7_10.jsonl:1: not an answer"):
        Folder(tmp_path, SETTINGS, {})
    file.write_bytes(to_line(to_record(TALK)) * 2)
    with pytest.raises(ValueError, match=r"jsonl:2: question_id 81 came before"):
        read_answers(file)
