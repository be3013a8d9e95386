"""Batch jobs: what a row may be, that every answer is the one it would get alone, and what a stop leaves behind."""

import json
import pathlib

import numpy as np
import pytest
from caller import CALLER, PIECES
from speller import DYNAMIC, RANDOM, SPELLED, SPELLER, TOKENIZER, spelled_from

from eagle_jax.api import Model, check_processing, generate
from eagle_jax.jobs import Defaults, Job, job, merge, processes
from eagle_jax.jobs.journal import Journal, entries
from eagle_jax.jobs.lines import Line, lines_of
from eagle_jax.jobs.manifest import fingerprint
from eagle_jax.jobs.output_parts import part_of
from eagle_jax.jobs.rows import Refused, Row, read
from eagle_jax.scheduling import offline

LETTERS = "abcdefghijklmnopqrsuvwxyz"
ASKED = dict(batch_size=4, **DYNAMIC)
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PLACE}}]


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


def test_rows_of_every_form_and_rows_that_are_none(tmp_path):
    first = write(
        tmp_path / "first.jsonl",
        [
            {"id": "text", "prompt": "w", "max_tokens": 3},
            "",
            {"id": 7, "messages": [{"role": "user", "content": "Say it."}], "stop": "c", "seed": None},
            {"prompt_ids": [5], "max_new_tokens": 1, "temperature": 0.9, "seed": 3},
            "{ no JSON",
        ],
    )
    body = {"model": "any", "messages": [{"role": "user", "content": "Hi."}], "max_completion_tokens": 4, "n": 1}
    second = write(
        tmp_path / "second.jsonl",
        [
            {"custom_id": "openai", "method": "POST", "url": "/v1/chat/completions", "body": body},
            {"id": "long", "prompt_ids": [5] * 60},
            {"id": "half", "messages": [{"role": "\ud83d", "content": "a character"}]},
            {"id": "huge", "prompt": "a", "temperature": 10**400},
        ],
    )
    output = tmp_path / "answers" / "all.jsonl"
    with Job([first, second], output, defaults=Defaults(max_new_tokens=5), token_ids=True) as begun:
        told: list[job.Tally] = []
        tally = begun.run(SPELLER, progress=told.append, **ASKED)
        assert begun.merge() == []
    rows = written(output)
    assert [row.get("custom_id", row["id"]) for row in rows] == [
        "text",
        7,
        "first.jsonl:4",
        "first.jsonl:5",
        "openai",
        "long",
        "half",
        "huge",
    ]
    assert (tally.rows, tally.answered, tally.failed, tally.before) == (8, 4, 4, 0)
    assert [one.done for one in told] == list(range(1, 9)) and 0 < tally.utilisation.fraction <= 1

    assert rows[0]["token_ids"] == spelled_from("w", 3) and rows[0]["finish_reason"] == "length"
    assert rows[0]["usage"] == {"prompt_tokens": 1, "completion_tokens": 3}
    assert rows[1]["text"] == "ab" and rows[1]["finish_reason"] == "stop"
    assert rows[2]["token_ids"] == generate(SPELLER, [5], max_new_tokens=1, temperature=0.9, seed=3).token_ids
    assert rows[2]["stats"] == {"steps": 0, "mean_accepted_length": None}
    assert rows[4]["response"]["body"]["choices"][0]["message"]["content"] == SPELLED[:4]
    assert [sorted(row) for row in (rows[3], *rows[5:])] == [["error", "id"]] * 4
    assert "not JSON" in rows[3]["error"] and "60 tokens; the model's context is 56" in rows[5]["error"]
    assert "Only user and assistant may speak, not \\ud83d" in rows[6]["error"]


@pytest.mark.parametrize(
    "row, error",
    [
        ([1, 2], "not a JSON object but [1, 2]"),
        ({"id": "a"}, "no prompt given; expected one of prompt, messages, prompt_ids"),
        ({"id": "a", "prompt": "b", "messages": [7]}, "prompt and messages given; expected one of"),
        ({"id": "a", "prompt": ["b"]}, "prompt=[...]; expected text"),
        ({"id": "a", "prompt": "b", "functions": []}, "field 'functions' is not known here; leave it out"),
        ({"id": "a", "prompt": "b", "tools": TOOLS}, "tools beside a prompt that is no chat; give messages"),
        ({"id": "a", "messages": [{}], "tools": [7]}, "tools[0]=7; expected"),
        ({"id": "a", "messages": [{}], "parallel_tool_calls": 1}, "parallel_tool_calls=1; expected true or false"),
        ({"id": "a", "prompt": "b", "max_tokens": 2, "max_new_tokens": 1}, "max_new_tokens and max_tokens mean the"),
        ({"id": "a", "prompt": "b", "response_format": {"type": "yaml"}}, 'response_format={"type": "yaml"}; expected'),
        ({"id": 1.5, "prompt": "b"}, "id 1.5; expected text or a whole number"),
        ({"id": "\ud800", "prompt": "b"}, 'id "\\ud800"; expected text'),
        ({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "b"}}, 'url "/v1/embeddings"; expected one'),
        ({"custom_id": "a", "body": {"prompt": "b", "n": 2000}}, "n=2000; expected 1024 answers to a row at most"),
        ({"custom_id": "a", "body": {"prompt": "b", "stream": True}}, "stream=true, and nobody reads a batch job"),
        ({"custom_id": "a", "body": "b"}, 'body is "b"; expected an object'),
        ({"custom_id": "a", "seed": 1, "body": {"prompt": "b"}}, 'field "seed" beside body is not known'),
    ],
)
def test_a_row_that_is_none_says_why(row, error):
    refused = read(Line(3, "x.jsonl:4", json.dumps(row).encode()))
    assert isinstance(refused, Refused) and error in refused.error
    assert refused.id == ("a" if isinstance(row, dict) and "a" in row.values() else "x.jsonl:4")


@pytest.mark.parametrize(
    "row",
    [
        {"id": "a", "prompt": "b", "mood": 1},
        {"custom_id": "a", "body": {"prompt": "b", "mood": 1}},
        {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "b", "mood": 1}]}},
        {"custom_id": "a", "body": {"prompt": "b"}, "mood": 1},
    ],
)
def test_fields_that_nobody_knows_are_passed_over_where_that_is_asked(row):
    line = Line(3, "x.jsonl:4", json.dumps(row).encode())
    refused, passed = read(line), read(line, ignore_unknown=True)
    assert isinstance(refused, Refused) and "mood" in refused.error
    assert isinstance(passed, Row) and passed.id == "a"


def test_rows_in_openais_form_are_answered_in_it(tmp_path):
    messages = [{"role": "user", "content": "Hi."}]
    rows = [
        {"custom_id": "chat", "url": "/v1/chat/completions", "body": {"model": "m", "messages": messages}},
        {"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "ab", "max_tokens": 3}},
        {"custom_id": "wrong", "body": {"messages": messages, "n": 0}},
        {"custom_id": "long", "body": {"prompt": [5] * 60}},
    ]
    answered([write(tmp_path / "in.jsonl", rows)], tmp_path / "out.jsonl")
    chat, text, *refused = written(tmp_path / "out.jsonl")
    assert set(chat) == {"id", "custom_id", "response", "error"} and chat["error"] is None
    body = chat["response"]["body"]
    assert (chat["response"]["status_code"], body["object"], body["model"]) == (200, "chat.completion", "m")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": SPELLED, "refusal": None}
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    assert (text["response"]["body"]["object"], text["response"]["body"]["choices"][0]["text"]) == (
        "text_completion",
        "cde",
    )
    for row in refused:
        assert row["response"]["status_code"] == 400
        assert row["error"]["message"] == row["response"]["body"]["error"]["message"]
    assert "n=0; expected" in refused[0]["error"]["message"]


def test_functions_that_answers_call(tmp_path):
    messages = [{"role": "user", "content": "?"}]
    called = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "th"}'}}
    told = {"role": "tool", "tool_call_id": "1", "content": "b"}
    before = [{"role": "assistant", "content": None, "tool_calls": [called]}, told]
    rows = [
        {"id": "own", "messages": messages, "tools": TOOLS},
        {"custom_id": "openai", "body": {"messages": [*messages, *before], "tools": TOOLS, "tool_choice": "auto"}},
        {"id": "none", "messages": messages, "tools": TOOLS, "tool_choice": "none"},
        {"id": "wrong", "messages": [7], "tools": TOOLS},
        {"id": "empty", "messages": [], "tools": TOOLS},
    ]
    first = answered([write(tmp_path / "in.jsonl", rows)], tmp_path / "out.jsonl", CALLER)
    own, openai, none, wrong, empty = written(tmp_path / "out.jsonl")
    (call,) = own["tool_calls"]
    assert (own["text"], own["finish_reason"]) == ("Let me see.", "tool_calls")
    assert call["function"] == {"name": "look", "arguments": '{"at": "sea"}'} and call["type"] == "function"
    choice = openai["response"]["body"]["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Let me see.", "tool_calls")
    assert choice["message"]["tool_calls"][0]["function"] == call["function"]
    assert none["text"] == "".join(PIECES["<|assistant|>"]) and "tool_calls" not in none
    assert "messages[0]=7; expected an object" in wrong["error"] and "messages=[]; expected a list" in empty["error"]
    assert answered([tmp_path / "in.jsonl"], tmp_path / "again.jsonl", CALLER) == first

    answered([write(tmp_path / "plain.jsonl", rows[:1])], tmp_path / "plain_out.jsonl")
    assert "chat template knows no tools" in written(tmp_path / "plain_out.jsonl")[0]["error"]


def test_options_that_depend_on_the_text(tmp_path):
    rows = [
        {"id": 1, "prompt": "ab", "bad_words": ["d"], "max_tokens": 4},
        {"id": 2, "prompt": "ab", "max_tokens": 4},
        {"id": 3, "prompt": "ab", "max_tokens": 4, "presence_penalty": 9},
    ]
    defaults = Defaults(**check_processing({"logit_bias": {TOKENIZER("e")["input_ids"][0]: -100.0}}))
    answered([write(tmp_path / "in.jsonl", rows)], tmp_path / "out.jsonl", defaults=defaults)
    first, second, third = written(tmp_path / "out.jsonl")
    assert first["text"][0] == "c" and "d" not in first["text"]
    assert second["text"].startswith("cd") and "e" not in second["text"]
    assert third["error"] == "presence_penalty=9; expected a number from -2 to 2, 0 is off"


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


def test_a_malformed_line_among_thousands(tmp_path):
    """Bytes that are no text, and a line that nests too deeply; every other row is read as if they were not there."""
    good = [json.dumps({"id": i, "prompt": "a"}).encode() for i in range(3000)]
    lines = [*good[:1500], b'{"prompt": "\xff"}', b"[" * 100_000, *good[1500:]]
    rows = [read(Line(number, f"f:{number}", line)) for number, line in enumerate(lines)]
    assert [row.number for row in rows if isinstance(row, Refused)] == [1500, 1501]
    assert [row.id for row in rows if not isinstance(row, Refused)] == list(range(3000))


def test_every_row_has_a_seed_of_its_own(tmp_path):
    questions = write(tmp_path / "same.jsonl", [{"prompt_ids": [5]}] * 4)
    defaults = Defaults(temperature=2.0, max_new_tokens=6)
    answered([questions], tmp_path / "all.jsonl", RANDOM, defaults=defaults, token_ids=True)
    rows = written(tmp_path / "all.jsonl")
    assert len({row["seed"] for row in rows}) == 4 and len({tuple(row["token_ids"]) for row in rows}) > 1
    for row in rows:
        alone = generate(RANDOM, [5], temperature=2.0, max_new_tokens=6, seed=row["seed"])
        assert row["token_ids"] == alone.token_ids


def test_a_stop_at_any_moment_changes_nothing(questions, tmp_path, monkeypatch):
    """The part is cut at every byte of two lines, and after every few rows the job is begun again."""
    expected = answered([questions], tmp_path / "undisturbed.jsonl")
    output = tmp_path / "answers.jsonl"
    part = part_of(output, 0, 1)
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
    part_of(tmp_path / "answers.jsonl", 0, 1).write_bytes(b"left behind by a kill after the renaming")
    assert Job([questions], tmp_path / "answers.jsonl").complete
    assert not part_of(tmp_path / "answers.jsonl", 0, 1).exists()
    assert (tmp_path / "answers.jsonl").read_bytes() == expected


def test_hosts_answer_their_share_and_the_last_one_merges(questions, tmp_path):
    expected = answered([questions], tmp_path / "alone.jsonl")
    output = tmp_path / "answers.jsonl"
    with Job([questions], output, host=1, hosts=2) as second:
        assert second.run(SPELLER, **ASKED).rows == 6
        assert second.merge() == [f"{part_of(output, 0, 2)} is not there"]
    with Job([questions], output, host=0, hosts=2) as first:
        assert merge(output) == [f"{part_of(output, 0, 2)} lacks 7 of its 7 rows"]
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

    def from_first(values: np.ndarray) -> np.ndarray:
        seen.append(values.tolist())
        return values

    monkeypatch.setattr(processes, "from_first", from_first)
    return seen


def test_who_cannot_begin_tells_the_others(questions, tmp_path, told, monkeypatch):
    output = tmp_path / "answers.jsonl"
    with Job([questions], output, one_model=True):
        assert told.pop()[:2] == [True, False]
        with pytest.raises(ValueError, match="another process is writing into"):
            Job([questions], output, one_model=True)
        assert told.pop()[:2] == [False, False]

    monkeypatch.setattr(processes, "any_says", lambda so: True)  # of the other process
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
    assert len(written(part_of(output, 0, 1))) == 13


def test_what_cannot_begin_is_one_sentence(questions, tmp_path):
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "mine.jsonl").write_text("precious")
    for inputs, output, more, error in (
        (["blank.jsonl"], "a.jsonl", {}, "no rows in .*blank.jsonl; expected one JSON object a line"),
        (["."], "a.jsonl", {}, "is no file; expected one that can be read again after a kill"),
        (["questions.jsonl"], "mine.jsonl", {}, "is there already and was made by no batch job"),
        (["questions.jsonl"], "questions.jsonl", {}, "is input and output; name another output"),
        (["questions.jsonl"], "a.jsonl", {"host": 2, "hosts": 2}, "host 2 of 2; expected a number from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=error):
            Job([tmp_path / name for name in inputs], tmp_path / output, **more)
    (tmp_path / "blank.jsonl").write_text("\ufeff\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no rows in"):
        Job([tmp_path / "blank.jsonl"], tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        Defaults(max_new_tokens=0)
    with pytest.raises(ValueError, match="is not there; expected the parts of a batch job"):
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
