import errno
import os

import pytest

from eagle_jax import jsonl
from eagle_jax.jsonl import JsonLines, complete_lines, parsed, to_line


def value(line: bytes, number: int) -> int | None:
    record = parsed(line)
    if isinstance(record, list):
        raise ValueError(f"line {number} is a list")
    return record["value"] if isinstance(record, dict) else None


LINES = [to_line({"value": number, "text": "ä"}) for number in range(3)]


def test_records_come_back_and_more_are_appended(tmp_path):
    path = tmp_path / "records.jsonl"
    with JsonLines(path, value) as file:
        assert file.entries == [] and file.cut == 0
        file.append({"value": 0, "text": "ä"})
        file.append({"value": 1, "text": "ä"}, {"value": 2, "text": "ä"})
    assert path.read_bytes() == b"".join(LINES)
    assert [entry for entry, _ in complete_lines(path, value)] == [0, 1, 2]


@pytest.mark.parametrize("size", range(len(LINES[0]) + len(LINES[1]) + 1))
def test_a_file_that_was_cut_anywhere_keeps_its_whole_lines(tmp_path, size):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(LINES)[:size])
    whole = sum(size >= end for end in (len(LINES[0]), len(LINES[0]) + len(LINES[1])))
    with JsonLines(path, value) as file:
        assert file.entries == list(range(whole)) and file.cut == size - len(b"".join(LINES[:whole]))
        file.append({"value": whole, "text": "ä"})
    assert path.read_bytes() == b"".join(LINES[: whole + 1])


def test_a_damaged_line_is_cut_off_with_what_follows(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(LINES[0] + b"\0" * 40 + b"\n" + LINES[2])
    with JsonLines(path, value) as file:
        assert file.entries == [0] and file.cut == 41 + len(LINES[2])
    assert path.read_bytes() == LINES[0]


def test_a_file_that_is_refused_stays_as_it_is_and_is_not_locked(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(LINES[0] + b"[]\n{")
    for _ in range(2):
        with pytest.raises(ValueError, match="line 2 is a list"):
            JsonLines(path, value)
    assert path.read_bytes() == LINES[0] + b"[]\n{"


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "records.jsonl"
    with JsonLines(path, value) as file:
        with pytest.raises(ValueError, match="another process is writing into .*records.jsonl"):
            JsonLines(path, value)
        file.append({"value": 0, "text": "ä"})
    with JsonLines(path, value) as again:
        assert again.entries == [0]


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JsonLines(tmp_path / "records.jsonl", value) as file, monkeypatch.context() as patch:
        patch.setattr(jsonl.os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device: .*records.jsonl"):
            file.append({"value": 0})


def test_how_often_the_disk_is_waited_for(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(os, "fsync", waits.append)
    monkeypatch.setattr(jsonl, "sync_folder", lambda folder: None)
    with JsonLines(tmp_path / "each.jsonl", value) as file:
        for number in range(3):
            file.append({"value": number})
        assert len(waits) == 3
    waits.clear()
    with JsonLines(tmp_path / "seldom.jsonl", value, sync_every=3600.0) as file:
        for number in range(3):
            file.append({"value": number})
        assert not waits and (tmp_path / "seldom.jsonl").read_bytes().count(b"\n") == 3
    assert len(waits) == 1
