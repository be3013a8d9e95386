"""Rows of a Ray Dataset get `generate`'s answers, whichever actor gives them and whatever becomes of it."""

import asyncio
import functools
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable

import numpy as np
import pytest
from small_engine import ENGINE

import eagle_jax
from eagle_jax.api import Defaults, Job, Model
from eagle_jax.jobs import engine_rows

ray = pytest.importorskip("ray", reason="Ray is not installed: make ray")
pa = pytest.importorskip("pyarrow", reason="Ray Data is not installed: make ray")

from eagle_jax.integrations.ray import data  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
ROWS, BEFORE = 200, 16
BAD = {7: {"temperature": -1.0}, 100: {"prompt": None}}
OPTIONS = dict(defaults=Defaults(seed=5, max_new_tokens=8), token_ids=True)
# Functions here are sent to actors as they are: these cannot import the tests.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rows(count: int = ROWS) -> list[dict]:
    """Greedy and sampled in turns, with a seed and without."""
    items = [
        {"id": i, "prompt": f"Say {i}", "temperature": 1.0 if i % 4 else 0.0, "max_new_tokens": 4 + i % 37}
        | {"seed": i * 1000 if i % 2 else None}
        for i in range(count)
    ]
    return [item | BAD.get(item["id"], {}) for item in items]


def differ(model: Model, answered: list[dict]) -> list[int]:
    """The rows whose text or tokens are not `generate`'s for the row's seed, or for the one that its id gives."""
    good = [row for row in answered if row["id"] not in BAD]
    drawn = [np.random.SeedSequence([5, row["id"]]).generate_state(1)[0] for row in good]
    seeds = [int(seed) if row["seed"] is None else row["seed"] for row, seed in zip(good, drawn, strict=True)]
    columns = {name: [row[name] for row in good] for name in ("temperature", "max_new_tokens")}
    expected = eagle_jax.generate(
        model, [row["prompt"] for row in good], seed=seeds, batch_size=4, tree=ENGINE["tree"], **columns
    )
    got = [(row["answer"]["text"], row["answer"]["token_ids"]) for row in good]
    return [row["id"] for row, one, two in zip(good, got, expected, strict=True) if one != (two.text, two.token_ids)]


def load_and_sign(load: Callable[[], Model], folder: pathlib.Path) -> Model:
    """The model, from a process that leaves its number."""
    (folder / str(os.getpid())).touch()
    return load()


def test_no_row_is_lost_or_changed_when_an_actor_is_killed(load, model, started, tmp_path):
    (folder := tmp_path / "actors").mkdir()
    answers = data.answer(
        ray.data.from_items(rows()),
        functools.partial(load_and_sign, load, folder),
        actors=2,
        batch_size=4,
        engine=ENGINE,
        **OPTIONS,
    )
    answered, killed = [], None
    for row in answers.iter_rows():
        answered.append(row)
        signed = [int(file.name) for file in folder.iterdir()]
        if killed is None and len(answered) >= BEFORE and len(signed) == 2:
            killed = min(signed)
            os.kill(killed, signal.SIGKILL)
    assert killed is not None and len(list(folder.iterdir())) == 3, "no actor was killed, or none took its place"
    answered.sort(key=lambda row: row["id"])
    assert [row["id"] for row in answered] == list(range(ROWS))
    errors = {row["id"]: row["answer"]["error"] for row in answered if row["answer"]["error"]}
    assert list(errors) == list(BAD) and "temperature=-1.0 is negative" in errors[7] and "no prompt" in errors[100]
    assert differ(model, answered) == []


@pytest.fixture(scope="module")
def load_once(model) -> Callable[[], Model]:
    return lambda: model


def answered_here(load: Callable[[], Model], items: list[dict], **how) -> list[dict]:
    """What an actor makes of a batch."""
    settings = dict(line=None, column="answer") | {name: how.pop(name) for name in ("line", "column") if name in how}
    names = dict.fromkeys(name for item in items for name in item)
    table = pa.table({name: [item.get(name) for item in items] for name in names})
    actor = data._Answering(load, ENGINE, **settings, how=OPTIONS | how)
    try:
        return asyncio.run(actor(table)).to_pylist()
    finally:
        actor._engine.close()


def test_seeds_of_actors_instead_of_rows_would_be_seen(load_once, model, monkeypatch):
    """The negative control of the test above."""
    items = rows(12)
    assert differ(model, answered_here(load_once, items)) == []
    sampling_options = engine_rows.sampling_options

    def by_actor(row, call, defaults, tokenizer):
        options, seeds = sampling_options(row, call, defaults, tokenizer)
        return options, [os.getpid()] * len(seeds)

    monkeypatch.setattr(engine_rows, "sampling_options", by_actor)
    sampled = [row["id"] for row in items if row["temperature"] > 0 and row["id"] not in BAD]
    assert differ(model, answered_here(load_once, items)) == sampled


def test_answers_are_those_of_a_batch_job(load_once, model, tmp_path):
    turns = ("user", "Rivers?"), ("assistant", "Long."), ("user", "Lakes?")
    messages = [{"role": role, "content": content} for role, content in turns]
    messages[0]["name"] = "Tom"  # in a table all messages have one then
    items = [
        {"id": 0, "messages": messages, "temperature": 1.0},
        {"id": 1, "prompt": "Rivers are", "stop": ["a", "e"]},
        {"id": 2, "prompt_ids": [12, 5, 901], "logit_bias": {"7": 2.0}},
        {"custom_id": 3, "body": {"prompt": "Rivers", "n": 2, "temperature": 1.0}},
        {"custom_id": 4, "body": {"prompt": "Rivers", "n": 0}},
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    with Job([file], tmp_path / "out.jsonl", **OPTIONS) as job:
        job.run(model, batch_size=4, tree=ENGINE["tree"])
        job.merge()
    expected = [data.answer_of(json.loads(line)) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    as_columns = answered_here(load_once, items)
    as_lines = answered_here(load_once, [{"text": line} for line in file.read_text().splitlines()], line="text")
    for got in (as_columns, as_lines):
        answers = [row["answer"] for row in got]
        assert [answer["text"] for answer in answers] == [one.get("text") for one in expected]
        assert [answer["seed"] for answer in answers] == [one.get("seed") for one in expected]
        assert [answer["error"] for answer in answers[:4]] == [None] * 4 and "n=0" in answers[4]["error"]
        bodies = [json.loads(one["response"])["body"]["choices"] for one in (answers[3], expected[3])]
        texts = [[choice["text"] for choice in choices] for choices in bodies]
        assert texts[0] == texts[1] and len(set(texts[0])) == 2


WRONG = [
    ({"prompt": "a", "mood": 1}, "field 'mood' is not known here; leave it out"),
    ({"prompt": b"x"}, "prompt={...}; expected text"),
    ({"prompt_ids": [5] * 600}, "the model's context is 512"),
    ({"id": 1.5, "prompt": "a"}, "id 1.5; expected text or a whole number"),
]


def test_a_row_that_is_none_says_why(load_once):
    """One at a time, since what one row has all rows of a table have."""
    for row, error in WRONG:
        [answered] = answered_here(load_once, [row])
        given = {name: value for name, value in answered["answer"].items() if value is not None}
        assert list(given) == ["error"] and error in given["error"]


def test_arrays_are_lists_and_what_is_null_is_left_out():
    row = {"prompt_ids": np.array([3, 4]), "top_k": np.int64(2), "seed": None, "a": [{"b": None, "c": [None, 1]}]}
    assert json.loads(data.line_of(row, None).content) == {"prompt_ids": [3, 4], "top_k": 2, "a": [{"c": [None, 1]}]}


def test_numbers_of_rows_follow_from_what_they_are():
    def number(row: dict) -> int:
        return data.line_of(row, None).number

    assert number({"id": 3, "prompt": "a"}) == 3 and number({"custom_id": 4, "body": {"prompt": "a"}}) == 4
    assert number({"id": "x", "prompt": "a"}) == number({"id": "x", "prompt": "b"}) != number({"id": "y"})
    assert number({"prompt": "a"}) == number({"prompt": "a", "seed": None}) != number({"prompt": "b"})
    assert number({"id": -1, "prompt": "a"}) >= 0
    assert data.line_of({"text": "no JSON"}, "text").number != data.line_of({"text": "[1]"}, "text").number


@pytest.mark.parametrize(
    "how, said",
    [
        ({"column": "prompt"}, "the rows already have a column 'prompt'; name another column for the answers"),
        ({"line": "text"}, "the rows have no column 'text' with lines; expected one of id, prompt"),
    ],
)
def test_columns_that_do_not_fit_are_one_sentence(load_once, how, said):
    with pytest.raises(ValueError, match=said):
        answered_here(load_once, rows(1), **how)
