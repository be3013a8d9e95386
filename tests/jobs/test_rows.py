"""Rows of batch jobs: every form that one may have, what is refused and why, and what they are answered."""

import json

import pytest
from caller import CALLER, PIECES
from speller import RANDOM, SPELLED, SPELLER, TOKENIZER, spelled_from
from test_jobs import ASKED, answered, write, written

from eagle_jax.api import check_processing, generate
from eagle_jax.jobs import Defaults, Job, job
from eagle_jax.jobs.lines import Line
from eagle_jax.jobs.rows import RejectedRow, Row, read

PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PLACE}}]


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
        ({"id": "a", "prompt": "b", "tools": TOOLS}, "tools with a prompt that is not a chat; give messages"),
        ({"id": "a", "messages": [{}], "tools": [7]}, "tools[0]=7; expected"),
        ({"id": "a", "messages": [{}], "parallel_tool_calls": 1}, "parallel_tool_calls=1; expected true or false"),
        ({"id": "a", "prompt": "b", "max_tokens": 2, "max_new_tokens": 1}, "max_new_tokens and max_tokens mean the"),
        ({"id": "a", "prompt": "b", "response_format": {"type": "yaml"}}, 'response_format={"type": "yaml"}; expected'),
        ({"id": 1.5, "prompt": "b"}, "id 1.5; expected text or a whole number"),
        ({"id": "\ud800", "prompt": "b"}, 'id "\\ud800"; expected text'),
        ({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "b"}}, 'url "/v1/embeddings"; expected one'),
        ({"custom_id": "a", "body": {"prompt": "b", "n": 2000}}, "n=2000; expected at most 1024 answers per row"),
        ({"custom_id": "a", "body": {"prompt": "b", "stream": True}}, "stream=true is not supported in batch jobs"),
        ({"custom_id": "a", "body": "b"}, 'body is "b"; expected an object'),
        ({"custom_id": "a", "seed": 1, "body": {"prompt": "b"}}, 'field "seed" next to body is not known'),
    ],
)
def test_a_row_that_is_none_says_why(row, error):
    refused = read(Line(3, "x.jsonl:4", json.dumps(row).encode()))
    assert isinstance(refused, RejectedRow) and error in refused.error
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
    assert isinstance(refused, RejectedRow) and "mood" in refused.error
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
    assert "chat template does not support tools" in written(tmp_path / "plain_out.jsonl")[0]["error"]


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


@pytest.mark.proof
def test_a_malformed_line_among_thousands(tmp_path):
    """Bytes that are no text, and a line that nests too deeply; every other row is read as if they were not there."""
    good = [json.dumps({"id": i, "prompt": "a"}).encode() for i in range(3000)]
    lines = [*good[:1500], b'{"prompt": "\xff"}', b"[" * 100_000, *good[1500:]]
    rows = [read(Line(number, f"f:{number}", line)) for number, line in enumerate(lines)]
    assert [row.number for row in rows if isinstance(row, RejectedRow)] == [1500, 1501]
    assert [row.id for row in rows if not isinstance(row, RejectedRow)] == list(range(3000))


@pytest.mark.proof
def test_every_row_has_a_seed_of_its_own(tmp_path):
    questions = write(tmp_path / "same.jsonl", [{"prompt_ids": [5]}] * 4)
    defaults = Defaults(temperature=2.0, max_new_tokens=6)
    answered([questions], tmp_path / "all.jsonl", RANDOM, defaults=defaults, token_ids=True)
    rows = written(tmp_path / "all.jsonl")
    assert len({row["seed"] for row in rows}) == 4 and len({tuple(row["token_ids"]) for row in rows}) > 1
    for row in rows:
        alone = generate(RANDOM, [5], temperature=2.0, max_new_tokens=6, seed=row["seed"])
        assert row["token_ids"] == alone.token_ids
