"""Measuring: what is read off large trees is what the loop does, and what is found is what `auto` goes by."""

import dataclasses
import json

import jax
import pytest
from speller import RANDOM, TOKENIZER
from typer.testing import CliRunner

from eagle_jax import api, cli
from eagle_jax.configs.dflash import SelectorConfig
from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, MaskConfig
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.inspection import start
from eagle_jax.inspection.start import Start
from eagle_jax.methods import budgets
from eagle_jax.methods.choice import default_tree, drafter_for
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.eagle3 import Head3
from eagle_jax.testing import synthetic_medusa
from eagle_jax.tuning import costs
from eagle_jax.tuning import tune as tuning
from eagle_jax.tuning.costs import Grid
from eagle_jax.tuning.tune import draft_along

PROMPTS = [TOKENIZER("spell")["input_ids"], TOKENIZER("write more")["input_ids"]]
SMALL = DynamicTree(8, 2, 2)
LARGEST = DynamicTree(20, 3, 3)


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(costs, "CPU", Grid(DynamicTree(4, 1, 2), (1, 4), (1, 2)))
    monkeypatch.setattr(start, "STEPS", 2)
    monkeypatch.setattr(tuning, "ANSWER_TOKENS", 16)


def test_steps_read_off_a_large_tree_are_those_of_the_loop():
    asks = tuning.greedy_requests(RANDOM, PROMPTS, 40)
    texts = draft_along(RANDOM, Eagle(head=RANDOM.head, policy=dataclasses.replace(LARGEST, best_first=True)), asks)
    results = api.generate(RANDOM, PROMPTS, max_new_tokens=40, tree=(8, 2, 2))
    for text, result in zip(texts, results, strict=True):
        assert text.tokens == result.token_ids
        place, lengths = 0, []
        while place < len(text.drafted):
            following = text.tokens[place + 1 : place + 4]
            lengths.append(1 + sum(n <= 8 for n in text.drafted[place].nodes_needed(following, 2, 2)))
            place += lengths[-1]
        assert lengths == result.stats.accepted_lengths[: len(lengths)] and max(lengths) > 1


def test_every_drafter_goes_on_from_one_beginning():
    start = Start(RANDOM, Eagle(head=RANDOM.head, policy=SMALL), tuning.greedy_requests(RANDOM, PROMPTS, 10))
    plain, drafted = start.run(Plain()), start.run(Eagle(head=RANDOM.head, policy=SMALL))
    assert (plain.steps, plain.tokens) == (9, 18) and drafted.steps < 9
    assert start.run(Plain()).tokens == 18, "the beginning is still there"


@pytest.mark.proof
def test_the_command_finds_keeps_and_tells(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "load", lambda *args, **kwargs: RANDOM)
    asked = [{"question_id": i, "category": "a", "turns": [turn]} for i, turn in enumerate(("Hi.", "Spell it."))]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    options = ["--batch-sizes", "1", "--max-new-tokens", "24", "--prompts", str(tmp_path / "asked.jsonl")]
    shown = CliRunner().invoke(cli.app, ["tune", *options])
    assert shown.exit_code == 0, shown.output
    assert "plain" in shown.stdout and "measured tok/s" in shown.stdout and "1 answer at a time" in shown.stdout
    (kept,) = budgets.read()
    assert (kept.rows, kept.slots, kept.method) == (1, 128, "eagle") and kept.speed >= kept.plain > 0
    chosen = drafter_for(RANDOM, "auto", "auto")
    assert chosen == Plain() if kept.tree is None else chosen.shape == budgets.tree_of(kept)


@pytest.mark.proof
def test_each_batch_size_finds_the_memory_of_the_last_one_free(monkeypatch):
    made: list[Start] = []

    class Watched(Start):
        def __init__(self, *args, **kwargs):
            assert all(array.is_deleted() for start in made for array in jax.tree.leaves(start.batch.state))
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(tuning, "Start", Watched)
    found = list(api.tune(RANDOM, batch_sizes=(1, 2), prompts=PROMPTS, max_new_tokens=16))
    assert [tuned.budget.rows for tuned in found] == [1, 2]
    assert [len(start.batch.rows) for start in made] == [1, 1, 2], "each text alone, then both together"


@pytest.mark.proof
def test_the_default_tree_and_trees_that_end_are_timed_too(monkeypatch):
    """On a CPU and for one answer; what is kept of one is what `auto` drafts."""
    ran = {DynamicTree.chain(6, 0.15): 9.0, None: 1.0}
    whole = tuning.time_answers

    def faster(start, drafters, *advance):
        runs = whole(start, drafters, *advance)
        return {tree: dataclasses.replace(run, tokens=16, seconds=1 / ran.get(tree, 2.0)) for tree, run in runs.items()}

    monkeypatch.setattr(tuning, "time_answers", faster)
    monkeypatch.setattr(costs, "CPU", Grid(DynamicTree(8, 6, 2), (1, 8), (2,)))
    alone, both = api.tune(RANDOM, batch_sizes=(1, 2), prompts=PROMPTS, max_new_tokens=16)
    assert {None, default_tree(RANDOM, "eagle", 1), *tuning.THRESHOLD_TREES} <= set(alone.measured)
    assert not set(tuning.THRESHOLD_TREES) & set(both.measured)
    assert alone.budget.tree == (6, 0.15)
    api.keep_budgets([alone.budget])
    assert drafter_for(RANDOM, "auto", "auto").shape == DynamicTree.chain(6, 0.15)


def test_a_tree_that_gains_nothing_over_plain_decoding_is_not_drafted():
    small, large = DynamicTree(4, 2, 1), DynamicTree(60, 7, 10)
    assert tuning.fastest({None: 100.0, small: 99.0, large: 40.0}) is None
    assert tuning.fastest({None: 100.0, small: 101.9, large: 40.0}) is None, "so little may be chance"
    assert tuning.fastest({None: 100.0, small: 102.1, large: 104.0}) == large


def test_what_cannot_be_tuned_is_refused_before_anything_is_measured(tmp_path):
    for given, said in (
        ({"drafter": "prompt-lookup"}, "has no trees to choose a size of"),
        ({"drafter": "medusa"}, "needs Medusa heads"),
        ({"batch_sizes": []}, "no batch sizes"),
        ({"batch_sizes": [0]}, "batch size=0; expected a whole number, 1 or more"),
        ({"prompts": [[1] * 56]}, "the prompt has 56 tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            api.tune(RANDOM, **given)
    with pytest.raises(ValueError, match="no tokenizer"):
        api.tune(dataclasses.replace(RANDOM, tokenizer=None))
    with pytest.raises(ValueError, match="nothing to tune: the model has no head"):
        api.tune(dataclasses.replace(RANDOM, head=None))
    assert budgets.read() == []


def test_trees_no_deeper_than_there_are_heads():
    medusa = dataclasses.replace(RANDOM, head=synthetic_medusa(RANDOM.target, num_heads=1))
    assert tuning.grid_for(medusa).largest == DynamicTree(3, 0, 2) and tuning.grid_for(medusa).nodes == (1, 3)
    sizes = {"layers": RANDOM.target.config, "target_hidden_size": RANDOM.target.config.hidden_size, "taps": (1,)}
    head = DFlash.init(DFlashConfig(**sizes, block_size=2, mask_token_id=0), jax.random.key(0))
    dflash = dataclasses.replace(RANDOM, head=head)
    assert tuning.grid_for(dflash).largest == DynamicTree(3, 0, 2)
    mask = MaskConfig(token_id=0, num_drafted=1)
    config = Eagle3Config(**sizes, draft_vocab_size=RANDOM.target.config.vocab_size, mask=mask)
    peagle = dataclasses.replace(RANDOM, head=Head3.init(config, jax.random.key(0)))
    assert tuning.grid_for(peagle).largest == DynamicTree(3, 0, 2)
    config = DFlashConfig(**sizes, block_size=4, mask_token_id=0, selector=SelectorConfig(2, 1))
    selecting = dataclasses.replace(RANDOM, head=DFlash.init(config, jax.random.key(0)))
    assert tuning.grid_for(selecting).largest.top_k == 1 and tuning.grid_for(selecting).widths == (1,)
    assert tuning.grid_for(RANDOM).largest == DynamicTree(4, 1, 2)


@pytest.mark.proof
def test_chains_no_deeper_than_there_are_heads(monkeypatch):
    monkeypatch.setattr(costs, "CPU", Grid(DynamicTree(8, 6, 2), (1, 4), (2,)))
    medusa = dataclasses.replace(RANDOM, head=synthetic_medusa(RANDOM.target, num_heads=3))
    (tuned,) = api.tune(medusa, batch_sizes=(1,), prompts=PROMPTS, max_new_tokens=16)
    assert [tree for tree in tuned.measured if tree and tree.min_probability] == [
        tree for tree in tuning.THRESHOLD_TREES if tree.depth <= 3
    ]
