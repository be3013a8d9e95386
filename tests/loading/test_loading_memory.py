"""Weights go from the files to the device one at a time: what the host holds beside the model meanwhile.

A process of its own looks at what it holds (mapped files left out) every millisecond while it loads a folder of shards.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from eagle_jax.converters import llama, save_target, writing
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

SHARD = 16 * 2**20

SCRIPT = """
import gc, json, sys, threading, time
import jax
import eagle_jax
from eagle_jax.converters.files import SafetensorsFile

sys.setswitchinterval(1e-4)


def held():
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith("RssAnon")).split()[1])


def beside():
    "Bytes that loading takes beside the model's own, and the model's own."
    gc.collect()
    before, most, over = held(), [0], threading.Event()

    def watch():
        while not over.wait(0.001):
            most[0] = max(most[0], held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = jax.block_until_ready(eagle_jax.load(sys.argv[1]).target.params)
    over.set()
    watcher.join()
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
    return most[0] - before - own, own


beside()  # compiles
loaded = beside()
kept, take = [], SafetensorsFile.take
SafetensorsFile.take = lambda self, name: kept.append(take(self, name).copy()) or kept[-1]
print(json.dumps([*loaded, beside()[0]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_never_more_than_a_shard_beside_the_model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    config = dataclasses.replace(TINY, hidden_size=512, intermediate_size=1536, num_hidden_layers=7, head_dim=128)
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.01, np.float32), llama.shapes(config))
    monkeypatch.setattr(writing, "SHARD_BYTES", SHARD)
    save_target(LM(params=params, config=config), tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) >= 6

    # blocks that are freed go back to the system at once
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17), "JAX_PLATFORMS": "cpu"}
    run = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    shown = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300, check=True)
    beside, own, beside_if_kept = json.loads(shown.stdout)
    assert own > 80e6
    assert beside < SHARD
    assert beside_if_kept > own - SHARD, "a copy of the model would be seen"
