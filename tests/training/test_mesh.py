"""Training over several devices and processes: the same losses, and checkpoints that go from one mesh to another."""

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from chats import TOKENIZER, config
from safetensors.numpy import load_file
from toy import CONFIG, pair

from eagle_jax.sharding import sharding_of, with_repeated_kv_heads
from eagle_jax.training import optimizer
from eagle_jax.training.heads import first
from eagle_jax.training.run import run
from eagle_jax.training.settings import HeadConfig, OptimizerConfig
from eagle_jax.training.update import begin

MESH = "data:2,model:2"
EAGLE3 = (
    "steps=3",
    "accumulate=2",
    "head.method=eagle3",
    "head.draft_vocab_size=6",
    "objective.steps=2",
    "optimizer.name=muon",
)


def losses(folder: pathlib.Path) -> np.ndarray:
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return np.array([[line["loss"], *line["distribution"][:1], *line["agreement"][:1]] for line in lines])


def weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return load_file(folder / "run" / "head" / "model.safetensors")


def assert_same_head(here: pathlib.Path, there: pathlib.Path) -> None:
    one, other = weights(here), weights(there)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        np.testing.assert_allclose(value, other[name], atol=5e-3, err_msg=name)


@pytest.mark.proof
def test_four_devices_give_the_losses_of_one(tmp_path):
    """EAGLE-3 with a draft vocabulary, Muon, and updates of two passes."""
    alone, spread = tmp_path / "alone", tmp_path / "spread"
    for folder, mesh in ((alone, "null"), (spread, MESH)):
        folder.mkdir()
        run(config(folder, *EAGLE3, f"mesh={mesh}"), pair()[0], TOKENIZER)
    np.testing.assert_allclose(losses(spread), losses(alone), atol=2e-4)
    assert_same_head(spread, alone)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of four updates on one device."""
    folder = tmp_path_factory.mktemp("alone")
    run(config(folder, "steps=4"), pair()[0], TOKENIZER)
    return folder


@pytest.mark.proof
def test_a_checkpoint_of_one_mesh_goes_on_on_another(alone, tmp_path):
    for mesh, enough, done in ((MESH, "1e-9", 1), ("null", "null", 4)):
        chosen = config(tmp_path, "steps=4", f"mesh={mesh}", f"max_minutes={enough}")
        assert run(chosen, pair()[0], TOKENIZER).done == done
    np.testing.assert_allclose(losses(tmp_path)[-1], losses(alone)[-1], atol=2e-4)
    assert_same_head(tmp_path, alone)


def test_head_and_moments_lie_in_shards():
    sharding = sharding_of(MESH, CONFIG)
    state = begin(pair()[1], optimizer.make(OptimizerConfig(warmup=1), 10), jax.random.key(0))
    state = sharding.put(state, sharding.head)
    for tree in (state.params, state.moments):
        paths = [
            (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        ]
        matrices = [leaf for path, leaf in paths if path.endswith("_proj/weight")]
        assert matrices and all(leaf.sharding.shard_shape(leaf.shape) != leaf.shape for leaf in matrices)


def test_heads_that_a_mesh_repeats_are_not_trained():
    """Over model:4 the target keeps its two key/value heads twice; the head has two."""
    target, _ = pair()
    wide = dataclasses.replace(target, config=with_repeated_kv_heads(CONFIG, {"data": 1, "model": 4}))
    assert wide.config.num_key_value_heads == 4
    head = first(HeadConfig(), wide, None, jax.random.key(0), sizes=CONFIG)
    assert head.config.layers.num_key_value_heads == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("mesh=data:4",), "batch=2 with mesh data:4; expected a multiple of it"),
        (("mesh=model:3",), "model:3 does not divide the target's 4 attention heads"),
        (("mesh=data:8",), "takes 8 devices and there are 4"),
    ],
)
def test_a_mesh_that_does_not_fit_is_one_sentence(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        run(config(tmp_path, *changes), pair()[0], TOKENIZER)
    assert not (tmp_path / "run").exists()


@pytest.mark.proof
def test_two_processes_train_what_one_does(alone, tmp_path):
    """Two processes with two devices each, which meet over loopback and share a folder; stopped once, and gone on."""
    worker = pathlib.Path(__file__).with_name("one_of_two_trainers.py")
    environment = os.environ | {"PYTHONPATH": str(worker.parent)}
    config(tmp_path)  # writes the conversations and the configuration
    for enough, done in (("1e-9", 1), ("null", 4)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        given = [sys.executable, str(worker), str(port), str(tmp_path), "steps=4", f"mesh={MESH}"]
        both = [
            subprocess.Popen(
                [*given, f"max_minutes={enough}", str(number)], stdout=subprocess.PIPE, text=True, env=environment
            )
            for number in range(2)
        ]
        said = [process.communicate(timeout=300)[0].splitlines()[-1:] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert said == [[f"Finished {done}"]] * 2
    np.testing.assert_allclose(losses(tmp_path)[-1], losses(alone)[-1], atol=2e-4)
    assert_same_head(tmp_path, alone)
