import json

import pytest


@pytest.fixture
def questions(tmp_path):
    lines = [
        {"question_id": 1, "category": "math", "turns": ["one", "two"]},
        {"question_id": 2, "category": "qa", "turns": ["word " * 200]},
        {"question_id": 3, "category": "qa", "turns": ["three"]},
    ]
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_the_table(fake, run, questions):
    shown = run("bench", "--questions", questions)
    assert shown.exit_code == 0
    rows = {line.split()[0]: line.split() for line in shown.stdout.splitlines() if line.strip()}
    assert rows["category"] == "category questions plain tok/s EAGLE tok/s speedup first tok/step same".split()
    assert rows["math"][1] == "1" and rows["math"][-2:] == ["3.00", "2/2"]
    assert rows["overall"][1] == "2" and rows["overall"][-2:] == ["3.00", "3/3"]
    assert "Identical texts: 3 of 3" in shown.stdout
    assert "Skipped 1 of 3 questions: with 128 new tokens they exceed the context of 512." in shown.stderr


def test_each_question_is_asked_as_often_as_wanted(fake, run, questions):
    shown = run("bench", "--questions", questions, "--repeats", "3", "--json")
    assert json.loads(shown.stdout)["settings"]["repeats"] == 3
    assert [request["drafter"] for _, request in fake.requests].count("eagle") == 3 * 3
    shown = run("bench", "--questions", questions, "--repeats", "2")
    assert "Each question was asked 2 times under each method; the quickest counts." in shown.stderr
    assert run("bench", "--questions", questions, "--repeats", "0").exit_code == 2


def test_it_says_where_texts_part(fake, run, questions):
    fake.plain_ids = [5, 6, 8]
    shown = run("bench", "--questions", questions)
    assert shown.exit_code == 0 and "Identical texts: 0 of 3" in shown.stdout
    assert (
        "Texts of plain and eagle diverge in question 1, turn 1, at token 3, and 1 more question. In bfloat16"
        in shown.stderr
    )


def test_json(fake, run, questions):
    shown = run("bench", "--questions", questions, "--json", "--temperature", "1", "--tree", "9,3,2", "--limit", "2")
    report = json.loads(shown.stdout)
    assert [row["category"] for row in report["categories"]] == ["math", "overall"]
    assert report["skipped"] == [2]
    assert report["categories"][-1]["methods"]["eagle"]["mean_accepted_length"] == 3.0
    assert report["settings"]["target"] is None and report["settings"]["dtype"] == "float32"
    assert report["settings"]["temperature"] == 1.0 and report["settings"]["tree"] == "9,3,2"
    assert report["answers"]["eagle"][0]["answers"][0]["token_ids"] == [5, 6, 7]
    assert report["device"].startswith("cpu")
    assert {request["drafter"] for _, request in fake.requests} == {"none", "eagle"}
    assert {request.get("tree") for _, request in fake.requests} == {"auto", (9, 3, 2)}


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--questions", "none.jsonl"], "none.jsonl: no such file or directory"),
        (["--questions", "{questions}", "--tree", "x"], "--tree 'x' is not a tree"),
        (["--questions", "{questions}", "--max-new-tokens", "600"], "none of the 3 questions fits"),
    ],
)
def test_misuse_is_one_sentence(fake, run, questions, arguments, sentence):
    shown = run("bench", *(argument.format(questions=questions) for argument in arguments))
    assert shown.exit_code == 2 and shown.stdout == ""
    assert f"eagle-jax: {sentence}" in shown.stderr


def test_a_malformed_line_is_named(fake, run, tmp_path):
    (tmp_path / "q.jsonl").write_text("{}\n")
    shown = run("bench", "--questions", str(tmp_path / "q.jsonl"))
    assert shown.exit_code == 2 and "q.jsonl:1: question_id and category and turns missing" in shown.stderr


def test_it_needs_a_head(fake, run, questions):
    fake.head = False
    shown = run("bench", "--questions", questions)
    assert shown.exit_code == 2 and "none was loaded; name one with --head" in shown.stderr


def test_the_file_must_be_named(fake, run):
    shown = run("bench")
    assert shown.exit_code == 2 and "Missing option '--questions'" in shown.stderr
    assert run("bench", "--questions", "q", "--limit", "0").exit_code == 2
