"""Records of a run: appended, taken back to where it resumes, and copied for TensorBoard."""

import json
import sys

import pytest

from eagle_jax.training.metrics import Metrics


def steps(folder) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_run_takes_back_what_it_will_write_again(tmp_path):
    metrics = Metrics(tmp_path, 0, tensorboard=False)
    for step in (2, 4, 6):
        metrics.write("train", step, {"loss": 1.0 / step})
    metrics.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "ki')  # killed while writing
    metrics = Metrics(tmp_path, 4, tensorboard=False)
    assert steps(tmp_path) == [2, 4]
    metrics.write("held_out", 5, {"loss": 0.5})
    metrics.close()
    assert steps(tmp_path) == [2, 4, 5]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1]) == {
        "step": 5,
        "kind": "held_out",
        "loss": 0.5,
    }
    Metrics(tmp_path, 0, tensorboard=False).close()
    assert steps(tmp_path) == []


def test_what_is_no_record_is_left_out(tmp_path):
    good = b'{"step": 2, "kind": "train"}\n'
    (tmp_path / "metrics.jsonl").write_bytes(good + b"\xff\x00\n{}\n3\nnothing\n" + good)
    Metrics(tmp_path, 4, tensorboard=False).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == 2 * good


def test_tensorboard_gets_the_same_numbers_a_curve_for_each_draft_step(tmp_path, monkeypatch):
    board = pytest.importorskip("tensorboardX")
    written = []
    monkeypatch.setattr(board.SummaryWriter, "add_scalar", lambda _, *scalar: written.append(scalar))
    metrics = Metrics(tmp_path, 0, tensorboard=True)
    metrics.write("train", 3, {"loss": 1.5, "agreement": [0.5, 0.25], "tokens_per_second": None})
    metrics.close()
    assert written == [("train/loss", 1.5, 3), ("train/agreement/1", 0.5, 3), ("train/agreement/2", 0.25, 3)]
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_missing_tensorboard_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install 'eagle-jax\[tensorboard\]'"):
        Metrics(tmp_path, 0, tensorboard=True)
