"""Features on disk: what they take is said first, a fill goes on where it stopped, and the losses are those without."""

import collections
import dataclasses
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chats import TOKENIZER, config
from safetensors.numpy import load_file
from toy import CONFIG, pair

from eagle_jax.training import events, feature_files
from eagle_jax.training.data import Rows
from eagle_jax.training.feature_files import digest, store
from eagle_jax.training.features import hidden_states
from eagle_jax.training.run import run
from eagle_jax.training.update import on_devices

TOKENS = np.random.default_rng(0).integers(0, 29, (7, 12)).astype(np.int32)
ROWS = Rows(TOKENS, np.ones((7, 12), bool), np.ones((7, 12), bool))
DRAWN = 7 * 12 * 2 * 16 * 4  # bytes: rows, tokens, the hidden state and one tap, their size, float32


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Settings for features in files of four rows, two passes each."""
    monkeypatch.setattr(feature_files, "FILE_BYTES", 2 * (2 * 12 * 2 * 16 * 4))
    return config(tmp_path, f"features.folder={tmp_path}/features")


def stored(chosen, rows=ROWS, target=None, observe=lambda event: None, **options):
    return store(chosen, target or pair()[0], rows, (1,), observe, **options)


def test_files_hold_what_the_target_makes_of_each_row(chosen):
    told = []
    files = stored(chosen, observe=told.append)
    assert [(event.done, event.files, event.bytes, event.missing) for event in told] == [
        (0, 2, DRAWN, DRAWN),
        (1, 2, DRAWN, DRAWN),
        (2, 2, DRAWN, DRAWN),
    ]
    expected = hidden_states(pair()[0], jnp.asarray(TOKENS), (1,))
    numbers = np.array([6, 0, 3])
    np.testing.assert_allclose(files[numbers], np.asarray(expected)[numbers], atol=1e-5)
    assert files.bytes == DRAWN and sum(path.stat().st_size for path in files.folder.glob("*.npy")) < DRAWN + 300


def test_a_fill_that_was_stopped_goes_on(chosen):
    files = stored(chosen)
    first, second = (files.folder / name for name in ("00000.npy", "00001.npy"))
    before = first.stat().st_mtime_ns
    second.rename(left := second.with_suffix(".part"))  # as a kill leaves it
    os.utime(left, (0, 0))
    (files.folder / "00002.part").touch()  # another run's
    told = []
    again = stored(chosen, observe=told.append)
    assert (told[0].files, told[0].missing) == (1, DRAWN * 3 // 7) and first.stat().st_mtime_ns == before
    assert again[np.array([5])].shape == (1, 12, 32)
    assert [path.name for path in files.folder.glob("*.part")] == ["00002.part"]


def test_two_runs_may_fill_one_folder(chosen, monkeypatch):
    """The second one writes the same file while the first one does."""
    save, values = np.save, np.zeros((4, 12, 32), np.float32)
    files = stored(chosen)
    before = files[np.arange(7)]

    def meanwhile(file, bits):
        monkeypatch.setattr(np, "save", save)
        monkeypatch.setattr("os.getpid", lambda: 1)
        stored(chosen)
        monkeypatch.undo()
        save(file, bits)

    (files.folder / "00000.npy").unlink()
    monkeypatch.setattr(np, "save", meanwhile)
    files.write(0, before[:4] + values)
    np.testing.assert_array_equal(files[np.arange(7)], before)
    assert not list(files.folder.glob("*.part"))


def test_too_little_room_is_said_before_anything_is_written(chosen, monkeypatch):
    usage = collections.namedtuple("usage", "free")(1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(OSError, match=r"the features take 1.08e-05 GB more \(7 rows of 12 tokens, 32 numbers each in"):
        stored(chosen)
    assert not list((feature_files.Path(chosen.features.folder)).glob("*.npy"))


def test_a_disk_that_fills_up_is_one_sentence(chosen, monkeypatch):
    def full(file, values):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="the features could not be written to .*features: No space left on device"):
        stored(chosen)
    assert not list(feature_files.Path(chosen.features.folder).glob("*.part"))


def test_features_of_something_else_are_refused(chosen):
    stored(chosen)
    with pytest.raises(ValueError, match=r"text was \d+ and is \d+ now; give the same, or name another features"):
        stored(chosen, Rows(TOKENS[::-1].copy(), ROWS.answer, ROWS.filled))
    target = pair()[0]
    other = jax.tree.map(lambda p: p * np.float32(1.5), target.params)
    with pytest.raises(ValueError, match=r"other settings: target was \d+ and is \d+ now"):
        stored(chosen, target=dataclasses.replace(target, params=other))
    half = dataclasses.replace(chosen, features=dataclasses.replace(chosen.features, dtype="bfloat16"))
    with pytest.raises(ValueError, match=r"other settings: dtype"):
        stored(half)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("00001.npy", b"", r"00001.npy is damaged \(.*\); remove it, and the next start computes it again"),
        ("00001.npy", None, r"00001.npy is damaged \(.*\); remove it, and the next start computes it again"),
        ("index.json", b"{", r"index.json is damaged \(.*\), so .* are unknown; remove .*/features, and"),
        ("index.json", b"[]", r"index.json is damaged \(a list\)"),
    ],
)
def test_a_damaged_file_is_named_before_anything_is_read_from_it(chosen, name, content, message):
    path = stored(chosen).folder / name
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    with pytest.raises(ValueError, match=message):
        stored(chosen)


def test_a_file_of_another_shape_is_named_and_computed_again_once_it_is_removed(chosen):
    files = stored(chosen)
    path, before = files.folder / "00001.npy", files[np.array([5])]
    np.save(path, np.zeros((1, 12, 32), np.uint32))
    with pytest.raises(ValueError, match=r"00001.npy holds uint32\[1, 12, 32\], expected u4\[3, 12, 32\]; remove it"):
        stored(chosen)
    path.unlink()
    np.testing.assert_array_equal(stored(chosen)[np.array([5])], before)


def test_half_the_bytes_hold_what_they_can(chosen):
    half = dataclasses.replace(chosen, features=dataclasses.replace(chosen.features, dtype="bfloat16"))
    files = stored(half)
    assert files.bytes == DRAWN // 2 and files[np.array([1])].dtype.name == "bfloat16"
    np.testing.assert_allclose(
        files[np.array([1])].astype(np.float32), hidden_states(pair()[0], jnp.asarray(TOKENS[1:2]), (1,)), rtol=0.01
    )


def test_targets_are_told_apart_wherever_they_lie():
    target = pair()[0]
    assert (
        digest(target, CONFIG)
        == digest(target, CONFIG)
        != digest(target, dataclasses.replace(CONFIG, rms_norm_eps=1e-6))
    )
    assert on_devices(TOKENS, None) is TOKENS


@pytest.mark.parametrize(
    "change", [lambda w: 2 * w, lambda w: -w, lambda w: w[::-1]], ids=["doubled", "negated", "turned"]
)
@pytest.mark.parametrize("layer", ["k_proj", "o_proj"])
def test_a_target_with_one_other_matrix_is_another(layer, change):
    target = pair()[0]
    attention = target.params["layers_0"]["self_attn"]
    other = attention | {layer: {"weight": change(attention[layer]["weight"])}}
    params = target.params | {"layers_0": target.params["layers_0"] | {"self_attn": other}}
    assert digest(dataclasses.replace(target, params=params), CONFIG) != digest(target, CONFIG)


def test_a_run_with_files_is_one_without_but_for_the_rounding_of_sums(tmp_path):
    """With the target in every update, with files, and with files and a little more noise, which is another run."""
    losses, heads = [], []
    kept = f"features.folder={tmp_path}/features"
    for name, more in (("online", ()), ("stored", (kept,)), ("other", (kept, "objective.noise=0.06"))):
        (tmp_path / name).mkdir()
        told: list[events.Event] = []
        chosen = config(tmp_path / name, "steps=3", "objective.noise=0.05", *more)
        finished = run(chosen, pair()[0], TOKENIZER, told.append)
        heads.append(load_file(finished.head / "model.safetensors"))
        losses.append([event.loss for event in told if isinstance(event, events.Updated)])
        assert any(isinstance(event, events.Storing) for event in told) == (name != "online")
    assert losses[0][0] == losses[1][0] != losses[2][0]  # of the same features, to the bit
    apart = [max(float(np.abs(heads[0][key] - head[key]).max()) for key in head) for head in heads[1:]]
    assert apart[0] < 1e-8 < 1e-6 < apart[1]
