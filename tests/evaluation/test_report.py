import dataclasses
import json
from collections.abc import Iterator

import pytest
from talks import answer, conversation, plain

from eagle_jax.evaluation.page import render
from eagle_jax.evaluation.results import read_results
from eagle_jax.evaluation.store import Folder, answer_file, read_json, write_json
from eagle_jax.evaluation.tables import tables

SETTINGS = {
    "methods": {"plain": {"nodes": 1, "depth": 0}, "chain": {"nodes": 4, "depth": 3}, "tree": {"nodes": 9, "depth": 3}},
    "max_new_tokens": 16,
    "sampling": {"temperature": 0.0},
    "target": None,
    "heads": ["<head>"],
    "dtype": "float32",
    "chat": True,
    "device": "cpu: cpu",
}
ABOUT = {
    "command": "eagle-jax eval 'questions & answers.jsonl'",
    "started": "2026-01-01 10:00",
    "cores": 2,
    "eagle_jax": "0",
    "jax": "0",
    "context": 512,
    "questions": 4,
    "skipped": [9],
    "turns": {"81": 2, "401": 2, "402": 1, "9": 1},
}


@pytest.fixture
def folder(tmp_path) -> Iterator[Folder]:
    with Folder(tmp_path / "run", SETTINGS, ABOUT) as folder:
        for id_, category, answers in (
            (81, "writing", [answer(2, 4, 2), answer(4, 1)]),
            (401, "math_reasoning", [answer(1, 1, 4)]),
        ):
            folder.append(conversation(id_, category, "plain", *plain(*answers)))
            folder.append(conversation(id_, category, "chain", *answers))
            folder.append(conversation(id_, category, "tree", *answers))
        yield folder


def test_tables(folder):
    overall, speedup, lengths, specbench, depths, alpha, spent = tables(read_results(folder.path))
    assert [row[0] for row in overall.rows] == ["plain", "chain", "tree"]
    assert [row[1] for row in overall.rows] == ["-", "chain 3", "9 x 3"]
    assert [row[-2:] for row in overall.rows] == [["3/3", "1.00"]] * 3
    assert speedup.header == ["method", "MT", "math", "all"] and speedup.rows[1] == ["chain", "4.00x", "4.00x", "4.00x"]
    assert lengths.rows[2] == ["tree", "2.60", "2.00", "2.38"]
    assert specbench.header == ["method", "MT", "math", "all", "tok/s", "accepted"]
    assert depths.rows == [["chain", "62%", "38%", "38%"], ["tree", "62%", "38%", "38%"]]
    assert alpha.rows == [["chain", "60%", "67%", "100%"]]
    assert spent.rows == [
        ["plain", "1", "19", "19", "1.00", "6.00"],
        *([name, "4", "8", "19", "2.38", "1.50"] for name in ("chain", "tree")),
    ]


def test_the_page_shows_what_steps_were_spent_on(folder):
    page = render(read_results(folder.path))
    assert "What steps were spent on" in page and "chain, 4 nodes: 1.50 s" in page and "plain decoding" in page
    for file in folder.path.glob("*.jsonl"):  # as an earlier version wrote them
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            del line["choices"][0]["spent"]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "What steps were spent on" not in render(read_results(folder.path))


def test_what_is_missing_is_said(folder):
    assert read_results(folder.path).notes == [
        "Skipped 1 of 4 questions: with 16 new tokens they exceed the context of 512.",
        "Left out 1 question that not every method has answered yet.",
        "Left out 1 later turn: with 16 new tokens they exceed the context of 512.",
    ]


def test_answers_that_go_round_in_circles_are_told(folder):
    """40 tokens of three: 3 of 39 pairs are new. 8 of the answers' other 17 pairs are not counted against them."""
    circling = answer(*[1] * 39)
    circling = dataclasses.replace(circling, token_ids=(1, 2, 3) * 13 + (1,))
    for method in SETTINGS["methods"]:
        folder.append(conversation(402, "math_reasoning", method, circling))
    results = read_results(folder.path)
    assert [row[-1] for row in tables(results)[0].rows] == [f"{(19 + 3) / (19 + 39):.2f}"] * 3
    assert "1 of 4 answers repeat themselves" in results.notes[0] and "1 of 4 answers repeat" in render(results)


def test_the_page_states_the_chat_template(folder):
    write_json(folder.path / "run.json", read_json(folder.path / "run.json") | {"chat_template": "{{ <messages> }}"})
    page = render(read_results(folder.path))
    assert "through the chat template" in page and "{{ &lt;messages&gt; }}" in page


def test_a_page_without_traces_and_without_plain_decoding(folder):
    page = render(read_results(folder.path))
    assert "questions &amp; answers.jsonl" in page and "&lt;head&gt;" in page
    assert page.count("<svg") == 4 and "A draft tree" not in page and "Where a step" not in page
    run = folder.path.parent / "other"
    methods = {"chain": SETTINGS["methods"]["chain"]}
    with Folder(run, SETTINGS | {"methods": methods}, ABOUT) as other:
        other.append(conversation(81, "writing", "chain", answer(2, 2)))
    assert render(read_results(run)).count("<svg") == 3
    assert tables(read_results(run))[0].rows[0][3] == "-"


def test_what_is_no_run_is_said(folder):
    run = read_json(folder.path / "run.json")
    for wrong in (run | {"turns": []}, {**run, "settings": run["settings"] | {"sampling": None}}):
        write_json(folder.path / "run.json", wrong)
        with pytest.raises(
            ValueError, match=r"run.json has (turns = \[\]|sampling = None), which `eagle-jax eval` never writes"
        ):
            read_results(folder.path)


def test_nothing_to_report(folder):
    answer_file(folder.path, "tree").write_text("")
    with pytest.raises(ValueError, match="has no question yet that every method has answered"):
        read_results(folder.path)
