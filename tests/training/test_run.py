"""A run from its configuration to the head: what it leaves behind, how it goes on, how it ends badly."""

import dataclasses
import json
import resource
import shutil
import signal

import jax
import numpy as np
import pytest
from chats import TOKENIZER, config, write_chats
from toy import pair

from eagle_jax.converters import load_head, save_target
from eagle_jax.jobs.training import train
from eagle_jax.loading import dtypes
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.eagle3 import Head3
from eagle_jax.training import events
from eagle_jax.training.run import exclusive, run
from eagle_jax.training.update_monitor import Diverged


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped: its folder, its configuration, what it told."""
    folder = tmp_path_factory.mktemp("whole")
    chosen, told = config(folder), []
    run(chosen, pair()[0], TOKENIZER, told.append)
    return folder, chosen, told


def weights(folder) -> bytes:
    return (folder / "run" / "head" / "model.safetensors").read_bytes()


def lines(folder) -> list[dict]:
    """The metrics without the speed, the one thing that differs between two equal runs."""
    read = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in read]


def test_a_run_tells_what_it_does_and_leaves_a_head(whole):
    folder, chosen, told = whole
    prepared = next(event for event in told if isinstance(event, events.Prepared))
    assert prepared.report.kept == 40 and (prepared.rows, prepared.held_out, prepared.step) == (32, 8, 0)
    assert [event.step for event in told if isinstance(event, events.Updated)] == list(range(1, 9))
    measured = [event for event in told if isinstance(event, events.Measured)]
    assert [event.step for event in measured] == [3, 6, 8] and len(measured[0].agreement) == 2
    assert measured[-1].loss < measured[0].loss
    finished = told[-1]
    longest = max(measured, key=lambda event: (event.accepted_length, event.step))
    assert isinstance(finished, events.Finished) and (finished.best, finished.done) == (longest.step, 8)
    assert load_head(finished.head, pair()[0]).config.layers.intermediate_size == 24
    kinds = [(line["kind"], line["step"]) for line in lines(folder)]
    expected = [
        ("train", 2),
        ("held_out", 3),
        ("train", 4),
        ("train", 6),
        ("held_out", 6),
        ("train", 8),
        ("held_out", 8),
    ]
    assert kinds == expected
    assert (folder / "run" / "config.yaml").read_text() == chosen.as_yaml()


def test_the_head_is_written_as_the_target_is_stored_whatever_computed(tmp_path, monkeypatch):
    target = pair()[0]
    rounded = dataclasses.replace(target, params=jax.tree.map(lambda p: p.astype("bfloat16"), target.params))
    save_target(rounded, tmp_path / "target")
    TOKENIZER.save_pretrained(tmp_path / "target")
    monkeypatch.setattr(dtypes, "multiplies_bfloat16", lambda: False)
    named = f"target={tmp_path / 'target'}", "steps=3"
    finished = train(config(tmp_path, *named))
    assert load_head(finished.head, target).dtype == "bfloat16"
    finished = train(config(tmp_path, *named, f"out={tmp_path / 'asked'}", "dtype=float32"))
    assert load_head(finished.head, target).dtype == "float32"


def test_the_accepted_length_is_that_of_one_drafted_chain(whole):
    for event in whole[2]:
        if isinstance(event, events.Measured):
            first, second = event.agreement
            np.testing.assert_allclose(event.accepted_length, 1 + first + first * second, atol=1e-4)


def stopping_at(step):
    """An observer that interrupts the run behind update `step`, as Ctrl-C does."""

    def observe(event):
        if isinstance(event, events.Updated) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observe


def test_a_run_stopped_twice_ends_as_one_never_stopped(whole, tmp_path):
    usual = signal.getsignal(signal.SIGINT)
    first = run(config(tmp_path), pair()[0], TOKENIZER, stopping_at(1))
    assert 1 <= first.done <= 3 and first.interrupted == signal.SIGINT and signal.getsignal(signal.SIGINT) is usual
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.copytree(checkpoints / str(first.done), checkpoints / "7.orbax-checkpoint-tmp")  # as a killed run leaves it
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "kind": "train"}\n{"step": 4, "ki')
    second = run(config(tmp_path), pair()[0], TOKENIZER, stopping_at(4))
    assert 4 <= second.done <= 6
    last = run(config(tmp_path), pair()[0], TOKENIZER)
    assert last.done == 8 and last.interrupted is None
    assert lines(tmp_path)[-1] == lines(whole[0])[-1]
    assert (weights(tmp_path) == weights(whole[0])) == (last.best == whole[2][-1].best)


def test_time_that_is_up_ends_a_run_with_a_checkpoint(tmp_path):
    finished = run(config(tmp_path, "max_minutes=1e-9"), pair()[0], TOKENIZER)
    assert finished.done == 1 and finished.interrupted is None
    assert (tmp_path / "run" / "checkpoints" / "1").is_dir()


def test_a_finished_run_has_nothing_left_to_do(whole):
    folder, chosen, told = whole
    before, again = weights(folder), []
    assert run(chosen, pair()[0], TOKENIZER, again.append) == told[-1]
    assert weights(folder) == before and not any(isinstance(event, events.Updated) for event in again)


def test_the_newest_checkpoints_and_the_best_are_kept(whole, tmp_path):
    told = []
    finished = run(config(tmp_path, "checkpoint.every=1", "checkpoint.keep=1"), pair()[0], TOKENIZER, told.append)
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {8, finished.best}
    assert weights(tmp_path) == weights(whole[0]) or finished.best != whole[2][-1].best


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_state(tmp_path):
    target, _ = pair()
    poisoned = dataclasses.replace(target, params=jax.tree.map(lambda p: p * np.float32("nan"), target.params))
    with pytest.raises(Diverged, match=r"update 1 gave a loss of nan .* on rows \d+, \d+; there was no checkpoint yet"):
        run(config(tmp_path), poisoned, TOKENIZER)
    done = run(config(tmp_path), target, TOKENIZER, stopping_at(1)).done
    kept = weights(tmp_path)
    (tmp_path / "run" / "sources.json").unlink()  # which would tell the two targets apart
    message = f"update {done + 1} gave a loss of nan .* the last good checkpoint is that of update {done}, .*lower"
    with pytest.raises(Diverged, match=message):
        run(config(tmp_path), poisoned, TOKENIZER)
    assert weights(tmp_path) == kept


def test_a_folder_of_another_run_is_left_alone(whole, tmp_path):
    folder, chosen, _ = whole
    with pytest.raises(ValueError, match="other settings: seed was 0 and is 1 now; give the same, or name another out"):
        run(config(folder, "seed=1"), pair()[0], TOKENIZER)
    assert (folder / "run" / "config.yaml").read_text() == chosen.as_yaml()
    run(config(tmp_path, "max_minutes=1e-9"), pair()[0], TOKENIZER)
    write_chats(tmp_path / "chats.jsonl", 40, seed=1)
    with pytest.raises(ValueError, match="the text is not what the run was started with"):
        run(config(tmp_path), pair()[0], TOKENIZER)


def test_a_run_goes_on_with_the_target_and_the_measure_that_it_was_begun_with(tmp_path):
    """Else updates of two targets would be one run, and the best head the one that was measured more kindly."""
    chosen, target = config(tmp_path), pair()[0]
    run(chosen, target, TOKENIZER)
    with pytest.raises(ValueError, match="other settings: evaluation.depth was 2 and is 1 now"):
        run(config(tmp_path, "evaluation.depth=1"), target, TOKENIZER)
    other = dataclasses.replace(target, params=jax.tree.map(lambda p: p * 1.01, target.params))
    with pytest.raises(ValueError, match=r"other settings: target in float32 was \d+ and is \d+ now; give the same"):
        run(chosen, other, TOKENIZER)
    (tmp_path / "run" / "sources.json").write_text("[")
    with pytest.raises(ValueError, match="sources.json is damaged"):
        run(chosen, target, TOKENIZER)
    (tmp_path / "run" / "sources.json").unlink()  # as runs of earlier versions have it
    assert run(chosen, target, TOKENIZER).done == 8

    (second := tmp_path / "second").mkdir()
    write_chats(second / "unseen.jsonl", 20, seed=3)
    chosen = config(second, f"data.held_out=[{second}/unseen.jsonl]", "max_minutes=1e-9")
    run(chosen, target, TOKENIZER)
    write_chats(second / "unseen.jsonl", 20, seed=4)
    with pytest.raises(ValueError, match=r"other settings: held-out text was \d+ and is \d+ now"):
        run(chosen, target, TOKENIZER)


def test_a_start_that_is_refused_leaves_the_configuration_as_it_was(whole, tmp_path):
    with pytest.raises(ValueError, match="an update takes 1000 rows"):
        run(config(tmp_path, "batch=1000"), pair()[0], TOKENIZER)
    assert not (tmp_path / "run" / "config.yaml").exists()
    (tmp_path / "run" / "config.yaml").write_text(config(tmp_path, "batch=1").as_yaml())  # as a kill may leave it
    assert run(config(tmp_path, "max_minutes=1e-9"), pair()[0], TOKENIZER).done == 1
    kept = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(
        ValueError, match=r"not what the run was started with: 32 rows then.* \(data.limit was not set and is 20 now\)"
    ):
        run(config(tmp_path, "data.limit=20"), pair()[0], TOKENIZER)
    assert (tmp_path / "run" / "config.yaml").read_text() == kept


def test_a_folder_has_one_run_at_a_time(tmp_path):
    with exclusive(tmp_path / "run"), pytest.raises(ValueError, match="another process is writing into .*/run; wait"):
        run(config(tmp_path), pair()[0], TOKENIZER)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("state/d", None),
        ("state/ocdbt.process_0/d", None),
        ("state/manifest.ocdbt", b""),
        ("position/metadata", b"{}"),
        ("position/metadata", b"[]"),
        ("metrics/metrics", b"{}"),
        ("metrics/metrics", b"{"),
    ],
)
def test_a_damaged_checkpoint_is_named(whole, tmp_path, file, content):
    """Cut off, empty, or of another kind."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    damaged = tmp_path / "run" / "checkpoints" / "8" / file
    for path in damaged.iterdir() if damaged.is_dir() else [damaged]:
        path.write_bytes(path.read_bytes()[:10] if content is None else content)
    chosen = config(tmp_path, f"data.train={tmp_path}/chats.jsonl", f"out={tmp_path}/run")
    with pytest.raises(ValueError, match=r"checkpoints/8 is damaged .* remove that folder"):
        run(chosen, pair()[0], TOKENIZER)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    chosen = config(tmp_path, f"out={tmp_path}/chats.jsonl/run")
    with pytest.raises(OSError) as caught:
        run(chosen, pair()[0], TOKENIZER)
    assert "chats.jsonl" in str(caught.value)


def test_a_full_disk_is_one_sentence(tmp_path):
    """Stands for a full disk: no file may grow beyond 2 kB while the checkpoint is written."""
    chosen, limits = config(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event):
        if isinstance(event, events.Measured):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))

    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="the checkpoint could not be written to .*: File too large$"):
            run(chosen, pair()[0], TOKENIZER, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, usual)


def test_an_eagle3_head_with_a_draft_vocabulary(tmp_path):
    told = []
    changes = ("head.method=eagle3", "head.draft_vocab_size=6", "objective.steps=1", "steps=3", "evaluation.depth=1")
    finished = run(config(tmp_path, *changes), pair()[0], TOKENIZER, told.append)
    prepared = next(event for event in told if isinstance(event, events.Prepared))
    head = load_head(finished.head, pair()[0])
    assert head.config.draft_vocab_size == 6 and 0.9 < prepared.coverage <= 1
    assert {1, 4, 5, 6, 7} <= set(np.asarray(head.vocabulary).tolist()), "what the answers are made of"


def test_a_dflash_head_from_features_on_disk(tmp_path):
    changes = ("head.method=dflash", "head.block_size=4", "head.mask_token_id=28", "objective.anchors=4", "steps=3")
    changes += (f"features.folder={tmp_path / 'features'}", "evaluation.depth=2", "optimizer.warmup=0")
    finished = run(config(tmp_path, *changes), pair()[0], TOKENIZER)
    head = load_head(finished.head, pair()[0])
    assert isinstance(head, DFlash) and (head.config.block_size, head.config.num_target_layers) == (4, 2)


def test_a_peagle_head(tmp_path):
    """Its embedding is written with it, and it is measured as deep as it drafts."""
    changes = ("head.method=peagle", "head.layers=2", "head.mask_token_id=28", "objective.steps=3")
    changes += ("objective.anchors=4", "steps=3", "evaluation.depth=4", "optimizer.warmup=0")
    finished = run(config(tmp_path, *changes), pair()[0], TOKENIZER)
    head = load_head(finished.head, pair()[0])
    assert isinstance(head, Head3) and head.num_drafted == 3 and head.config.own_embedding


def test_more_rows_than_there_are_cannot_be_asked_for(tmp_path):
    with pytest.raises(ValueError, match="an update takes 200 rows .* but there are only 32"):
        run(config(tmp_path, "batch=100", "accumulate=2"), pair()[0], TOKENIZER)


def test_a_target_without_tokenizer_cannot_be_trained_for(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer"):
        run(config(tmp_path), pair()[0], None)


def test_the_target_is_left_as_it_was(whole):
    target, _ = pair()
    before = jax.tree.map(np.array, target.params)
    run(whole[1], target, TOKENIZER)
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, target.params))
