import json

import pytest

from eagle_jax.evaluation import Question, read_questions

GOOD = {"question_id": 81, "category": "writing", "turns": ["Hello.", "Again."], "reference": ["kept out"]}


@pytest.fixture
def write(tmp_path):
    def write(*lines: object) -> str:
        path = tmp_path / "q.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return str(path)

    return write


def test_reads_spec_bench_lines_and_skips_empty_ones(write):
    assert read_questions(write(GOOD, "", {**GOOD, "question_id": "b"})) == [
        Question(id=81, category="writing", turns=("Hello.", "Again.")),
        Question(id="b", category="writing", turns=("Hello.", "Again.")),
    ]


def test_the_limit_stops_before_later_lines_are_looked_at(write):
    assert len(read_questions(write(GOOD, "not json"), limit=1)) == 1


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"question_id": 1', r"q\.jsonl:2: not JSON \(.* at column"),
        ("[1, 2]", "q.jsonl:2: expected a JSON object .*, got a list"),
        ({"question_id": 1}, "q.jsonl:2: category and turns missing"),
        ({**GOOD, "question_id": 1.5}, "q.jsonl:2: question_id must be .*, got a number with a fraction"),
        ({**GOOD, "question_id": True}, "q.jsonl:2: question_id must be .*, got a truth value"),
        ({**GOOD, "question_id": 1, "category": 3}, "q.jsonl:2: category must be a string, got a number"),
        ({**GOOD, "question_id": 1, "turns": "Hello."}, "q.jsonl:2: turns must be a list"),
        ({**GOOD, "question_id": 1, "turns": []}, "q.jsonl:2: turns must be a list"),
        ({**GOOD, "question_id": 1, "turns": ["a", " "]}, "q.jsonl:2: turns must be a list"),
        (GOOD, "q.jsonl:2: question_id 81 came before"),
    ],
)
def test_a_malformed_line_is_named(write, line, message):
    with pytest.raises(ValueError, match=message):
        read_questions(write(GOOD, line))


def test_files_without_questions(tmp_path, write):
    with pytest.raises(ValueError, match="has no questions"):
        read_questions(write(""))
    with pytest.raises(FileNotFoundError):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_questions(tmp_path / "latin.jsonl")


def test_a_line_ends_at_its_end_and_the_mark_of_some_editors_is_none(tmp_path):
    turns = [f"one{end}two" for end in "\u2028\u2029\x85"]
    line = json.dumps({**GOOD, "turns": turns}, ensure_ascii=False)
    other = json.dumps({**GOOD, "question_id": 82})
    (tmp_path / "q.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n{other}\n".encode())
    first, second = read_questions(tmp_path / "q.jsonl")
    assert first.turns == tuple(turns) and second.id == 82
