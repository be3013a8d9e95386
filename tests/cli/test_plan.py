"""`eagle-jax plan`: what it computes, and that the page shows what it prints."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_jax.api import Model
from eagle_jax.converters import config_to_hf
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.inspection.plan import plan_of_configs, slots_of_caches
from eagle_jax.methods.default_trees import shrink_to
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import BatchShape, slots_to_hold
from eagle_jax.sharding import parse
from eagle_jax.testing import TINY, synthetic_pair

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "scaling.md"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_to_hf(dataclasses.replace(TINY, vocab_size=64))))
    return str(tmp_path)


def test_a_folder_with_nothing_but_a_config(run, folder):
    whole, half = (
        json.loads(run("plan", "--target", folder, "--mesh", mesh, "--slots", "200", "--json").stdout)[0]
        for mesh in ("model:1", "data:2,model:2")
    )
    assert (half["requests"], half["head"]) == (16, 0)
    # keys and values in bfloat16: layers, rows, kv heads, slots, head size; and two lengths a row
    assert whole["cache"] == 2 * 2 * 2 * 8 * 2 * 256 * 8 + 2 * 4 * 8
    assert half["cache"] == 2 * 2 * 2 * 8 * 1 * 256 * 8 + 2 * 4 * 8
    assert whole["target"] / 2 < half["target"] < whole["target"] * 0.52  # all but norms


@pytest.mark.parametrize(("nodes", "tokens"), [(1, 1023), (1, 1024), (60, 1015), (60, 1016), (8, 2048)])
def test_planned_caches_are_those_of_a_batch(nodes, tokens):
    config = dataclasses.replace(TINY, vocab_size=64, max_position_embeddings=4096)
    target, head = synthetic_pair(config)
    drafter = Plain() if nodes == 1 else Eagle(head=head, policy=shrink_to(DynamicTree(60, 7, 10), nodes))
    model = Model(target, head, tokenizer=None, stop_ids=(), context=4096)
    slots = slots_to_hold(drafter, tokens - 1, tokens)
    batch = Batch(
        model, drafter, BatchShape(rows=2, slots=slots, mode=Sampling(False, False), logprobs=False, stop_ids=1)
    )
    planned = plan_of_configs(config, None, parse("model:1"), 2, slots_of_caches(tokens, nodes), nodes, jnp.float32)
    assert planned.cache == sum(leaf.nbytes for leaf in jax.tree.leaves(batch.state.cache))


def test_the_page_shows_what_the_command_prints(run):
    printed = run("plan", "--target", "llama-3.1-8b-instruct", "--chips", "1,4").stdout.splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in printed]
    page = [[cell.strip() for cell in line.split("|")] for line in PAGE.read_text().splitlines()]
    assert len(cells) == 4 and all(row in page for row in (cells[0], *cells[2:]))


@pytest.mark.parametrize(
    "given, said",
    [
        (("--mesh", "model:3"), "model:3 does not divide the target's 4 attention heads"),
        (("--chips", "four"), "--chips 'four'; expected whole numbers"),
        (("--memory", "-3"), "--memory -3; expected the gigabytes of a chip"),
        (("--memory", "nan"), "--memory nan; expected the gigabytes of a chip"),
        (("--chips", "0"), "chips=0; expected a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(run, folder, given, said):
    shown = run("plan", "--target", folder, *given)
    assert shown.exit_code == 2 and said in shown.stderr


def test_heads_that_are_not_planned_for(run, folder, tmp_path):
    (tmp_path / "heads").mkdir()
    shapes = {"0.0.linear.weight": (4, 4), "0.0.linear.bias": (4,), "0.1.weight": (11, 4)}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "heads" / "model.safetensors")
    (tmp_path / "heads" / "config.json").write_text("{}")
    shown = run("plan", "--target", folder, "--head", str(tmp_path / "heads"))
    assert shown.exit_code == 2 and "holds Medusa heads, not planned for" in shown.stderr
