"""Heads that are compared have names of their own."""

import pytest

from benchmarks.decode import heads


def test_two_heads_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["heads", "--questions", "q.jsonl", "a/eagle3/head", "b/eagle3/head", "c=d"])
    with pytest.raises(ValueError, match="several heads are called eagle3; tell them apart by NAME=FOLDER"):
        heads.main()
