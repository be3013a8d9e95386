"""What `tree="auto"` goes by: findings on disk, and the default tree where there are none."""

import dataclasses
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speller import RANDOM, TOKENIZER

from eagle_jax import api
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Plain
from eagle_jax.durable import lock_file
from eagle_jax.methods import budgets, default_trees
from eagle_jax.methods.budgets import Budget, budget_for, read, save, setup
from eagle_jax.methods.choice import drafter_for
from eagle_jax.methods.registry import method_of
from eagle_jax.models import layout
from eagle_jax.testing import cpu_backend, synthetic_medusa

PROMPT = TOKENIZER("spell")["input_ids"]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def found(rows: int, tree: budgets.TreeNumbers | None, slots: int = 128, model: api.Model = RANDOM) -> Budget:
    device, fingerprint, mesh, method = setup(model, "eagle")
    where = dict(device=device, model=fingerprint, mesh=dict(mesh), method=method)
    return Budget(**where, rows=rows, slots=slots, tree=tree, plain=100.0, speed=150.0)


def test_what_is_kept_is_read_again():
    assert read() == [] and budget_for(RANDOM, "eagle", 1) is None
    save([found(1, (8, 2, 2)), found(4, None)])
    save([found(1, (4, 2, 1))])
    assert read() == [found(1, (4, 2, 1)), found(4, None)]
    assert budget_for(RANDOM, "eagle", 1) == found(1, (4, 2, 1))


def test_a_tree_with_a_beam_is_kept_as_it_was_drafted():
    tree = DynamicTree(12, 3, 3, 11)
    save([found(1, budgets.numbers_of(tree)), found(4, budgets.numbers_of(DynamicTree(12, 3, 3)))])
    assert [one.tree for one in read()] == [(12, 3, 3, 11), (12, 3, 3)]
    assert budgets.tree_of(budget_for(RANDOM, "eagle", 1)) == tree
    assert budgets.tree_of(budget_for(RANDOM, "eagle", 4)) == DynamicTree(12, 3, 3)


def test_loads_between_and_beyond_those_that_were_measured():
    save([found(1, (8, 2, 2)), found(4, (3, 1, 1)), found(4, (2, 0, 1), slots=512)])
    assert budget_for(RANDOM, "eagle", 2) == found(4, (3, 1, 1)), "the next larger batch drafts no more than this could"
    assert budget_for(RANDOM, "eagle", 4, 600) == found(4, (2, 0, 1), slots=512)
    assert budget_for(RANDOM, "eagle", 1, 200) == found(1, (8, 2, 2))
    assert budget_for(RANDOM, "eagle", 8) is None, "nobody knows"
    save([found(8, None)])
    assert budget_for(RANDOM, "eagle", 64) == found(8, None), "with more rows drafting loses all the more"


def test_the_batch_size_counts_before_the_cache_size():
    save([found(1, (8, 2, 2)), found(4, (2, 0, 1), slots=4096), found(4, None, slots=1024)])
    assert budget_for(RANDOM, "eagle", 1, 4096) == found(1, (8, 2, 2)), "a row more costs more than a longer cache"
    assert budget_for(RANDOM, "eagle", 4, 3000) == found(4, (2, 0, 1), slots=4096)
    assert budget_for(RANDOM, "eagle", 8, 1000) == found(4, None, slots=1024)


def test_findings_are_of_the_kernels_that_were_asked_for(monkeypatch):
    save([found(1, (8, 2, 2))])
    assert budget_for(RANDOM, "eagle", 1) is not None
    monkeypatch.setenv("EAGLE_JAX_OPS", "linear:gpu")
    assert budget_for(RANDOM, "eagle", 1) is None
    save([found(1, (6, 2, 2))])
    assert budget_for(RANDOM, "eagle", 1).tree == (6, 2, 2)
    monkeypatch.delenv("EAGLE_JAX_OPS")
    assert budget_for(RANDOM, "eagle", 1).tree == (8, 2, 2)


def test_findings_are_of_one_model_and_method():
    save([found(1, (8, 2, 2))])
    wide = dataclasses.replace(RANDOM.target.config, intermediate_size=64)
    other = dataclasses.replace(RANDOM, target=type(RANDOM.target).init(wide, budgets.jax.random.key(0)))
    assert budget_for(other, "eagle", 1) is None and budget_for(RANDOM, "medusa", 1) is None
    assert budget_for(dataclasses.replace(RANDOM, stop_ids=(7,)), "eagle", 1) is not None
    assert [method_of(RANDOM, name) for name in ("auto", "eagle1", "eagle", "none")] == ["eagle"] * 3 + ["none"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({"version": 0, "budgets": [{}]}),
        json.dumps({"version": 1, "budgets": 3}),
        json.dumps({"version": 1, "budgets": [None, {}, {"rows": 1}]}),
        b"\xff\xfe".decode("latin-1"),
    ],
)
def test_a_damaged_file_holds_nothing_and_is_replaced(content):
    budgets.path().parent.mkdir(parents=True)
    budgets.path().write_text(content, encoding="latin-1")
    assert read() == []
    save([found(1, None)])
    assert read() == [found(1, None)]


@pytest.mark.parametrize(
    "change", [{"tree": [1, 2, 3]}, {"tree": [8, 2]}, {"tree": ["8", 0.5]}, {"rows": "4"}, {"mesh": 3}, {"more": 1}]
)
def test_a_damaged_entry_is_passed_over(change):
    save([found(1, (8, 2, 2)), found(4, None)])
    held = json.loads(budgets.path().read_text())
    held["budgets"][0] |= change
    budgets.path().write_text(json.dumps(held))
    assert read() == [found(4, None)]


def test_nothing_but_the_file_and_its_lock_is_left():
    save([found(1, None)])
    assert {path.name for path in budgets.path().parent.iterdir()} == {"budgets.json", "budgets.lock"}


def test_who_keeps_at_the_same_time_waits():
    save([found(1, None)])
    another = threading.Thread(target=save, args=([found(4, None)],))
    with budgets.path().with_suffix(".lock").open() as lock:
        lock_file(lock, "the findings")
        another.start()
        another.join(0.2)
        assert another.is_alive() and read() == [found(1, None)]
    another.join()
    assert read() == [found(1, None), found(4, None)]


def laid(model):
    """As `load` lays it out."""
    params = layout.for_decoding(jax.tree.map(jnp.copy, model.target.params), model.target.config.head_dim)
    return dataclasses.replace(model, target=dataclasses.replace(model.target, params=params))


def test_default_trees_shrink_with_the_batch(monkeypatch):
    def nodes(rows, model=RANDOM):
        return drafter_for(model, "auto", "auto", rows).shape.nodes

    rough = dataclasses.replace(RANDOM, target=jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), RANDOM.target))
    if cpu_backend() is not None:
        ours, ours_rough = laid(RANDOM), laid(rough)
        assert [nodes(rows, ours) for rows in (1, 2, 3, 16)] == [6, 4, 1, 1]
        assert [nodes(rows, ours_rough) for rows in (1, 2, 16)] == [6, 1, 1], "weights are read in half the time"
        monkeypatch.setattr(default_trees, "CPU_CACHE_BYTES", 0)
        assert [nodes(rows, one) for one in (ours, ours_rough) for rows in (1, 2, 3)] == [8, 4, 1] * 2
    assert [nodes(rows) for rows in (1, 2, 3, 4, 16)] == [8, 4, 2, 2, 1]
    assert [nodes(rows, rough) for rows in (1, 2, 3, 4, 6, 8)] == [6, 6, 4, 3, 2, 1], "XLA's rows cost less in bfloat16"
    medusa = dataclasses.replace(RANDOM, head=synthetic_medusa(RANDOM.target, num_heads=4))
    assert nodes(1, medusa) == 4 and nodes(16, medusa) == 1
    assert drafter_for(RANDOM, "auto", (8, 2, 2), 64).shape.nodes == 8, "what is asked for is drafted"
    monkeypatch.setattr(budgets.jax, "default_backend", lambda: "gpu")
    assert [nodes(rows) for rows in (1, 4, 8, 16, 32, 64, 128, 256)] == [60, 60, 32, 16, 12, 6, 4, 1]
    read = [drafter_for(RANDOM, "auto", "auto", rows).budget for rows in (1, 16, 32, 64, 128, 256)]
    assert read == [None, None, 256, 256, 256, None], "from 32 on they share what is read"
    assert [nodes(rows, medusa) for rows in (1, 4, 32)] == [64, 64, 5]


def test_the_published_tree_is_no_wider_than_the_draft_vocabulary():
    few = dataclasses.replace(RANDOM, head=RANDOM.head.trimmed(RANDOM.target, np.arange(6)))
    assert drafter_for(few, "auto", "published").shape == DynamicTree(60, 7, 6)
    assert drafter_for(RANDOM, "auto", "published").shape == DynamicTree(60, 7, 10)


def test_the_tree_is_the_one_for_the_rows_in_use_and_the_text_the_same():
    prompts = [PROMPT, PROMPT[1:], PROMPT[2:]]
    plain = api.generate(RANDOM, prompts, max_new_tokens=12, drafter="none")
    save([found(1, (8, 2, 2)), found(2, (3, 1, 1)), found(4, None)])
    for rows, depth in ((1, 3), (2, 2), (4, 0)):
        assert drafter_for(RANDOM, "auto", "auto", rows).shape.depth == depth
        drafted = api.generate(RANDOM, prompts, max_new_tokens=12, batch_size=rows)
        assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
        assert {len(result.stats.accepted_by_depth) for result in drafted} == {depth}
    assert drafter_for(RANDOM, "eagle", "auto", 4) == Plain()
    assert drafter_for(RANDOM, "eagle", "published", 4).shape == DynamicTree(60, 7, 10)
    last = [chunk.result for chunk in api.stream(RANDOM, prompts[:1], max_new_tokens=12)][-1]
    assert last.token_ids == plain[0].token_ids and len(last.stats.accepted_by_depth) == 3


def test_findings_are_read_again_when_their_file_changes_and_an_unreadable_one_is_not_remembered(monkeypatch):
    save([found(1, (8, 2, 2))])
    assert len(budgets.read()) == 1
    save([found(4, None)])
    assert len(budgets.read()) == 2

    budgets._read.cache_clear()
    with monkeypatch.context() as failing:
        failing.setattr(budgets.Path, "read_text", lambda *_: (_ for _ in ()).throw(OSError("too many open files")))
        assert budgets.read() == []
    assert len(budgets.read()) == 2
