"""The benchmark of windows prints a row for each, and its prompts end in the same questions."""

import json
import sys

import pytest

from benchmarks.decode import draft_window


def test_prompts_of_one_length_end_in_their_questions():
    asked = [[1, 2, 3], [4, 5], [6]]
    assert draft_window.cut(asked, 4) == [[5, 6, 1, 2, 3][-4:], [1, 2, 3, 4, 5][-4:], [3, 4, 5, 6]]
    assert draft_window.cut(asked, 2) == [[2, 3], [4, 5], [5, 6]]


def test_a_small_run(tmp_path, monkeypatch, capsys):
    questions = tmp_path / "questions.jsonl"
    turns = [["Tom has 3 apples and buys 4 more. How many apples does he have?"], ["Ann had 9 pens and lost 2."]]
    lines = ({"question_id": i, "category": "math", "turns": turn} for i, turn in enumerate(turns))
    questions.write_text("\n".join(map(json.dumps, lines)))
    small = ["--lengths", "24", "4096", "--windows", "4", "--new-tokens", "8", "--tree", "6,1,2"]
    monkeypatch.setattr(sys, "argv", ["draft_window", "--questions", str(questions), *small])
    draft_window.main()
    title, _, columns, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert "2 questions" in title and columns == "| window | 24 tokens |"
    assert [row.split("|")[1].strip() for row in rows] == ["none", "4"]
    assert all(1 <= float(row.split("|")[2]) <= 3 for row in rows)
    monkeypatch.setattr(sys, "argv", ["draft_window", "--questions", str(questions), "--lengths", "4096"])
    with pytest.raises(ValueError, match="no length of .* fits"):
        draft_window.main()
