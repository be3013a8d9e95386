"""Drafters by name: what each needs, which sizes it has, and what is refused."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import eagle_jax
from eagle_jax import api
from eagle_jax.configs.dflash import SelectorConfig
from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, MaskConfig
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.hybrid import Hybrid
from eagle_jax.drafters.hydra import HydraDrafter
from eagle_jax.drafters.medusa import MEDUSA_TREE, MedusaDrafter
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.drafters.prompt_lookup import PromptLookup
from eagle_jax.drafters.token_recycling import TokenRecycling
from eagle_jax.loading.folders import PAIR
from eagle_jax.methods import choice
from eagle_jax.methods.choice import choose, drafter_for
from eagle_jax.methods.default_trees import DefaultTree
from eagle_jax.methods.registry import METHODS
from eagle_jax.methods.tree_arguments import tree_policy
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.eagle3 import Head3
from eagle_jax.testing import TINY, synthetic_hydra, synthetic_medusa, synthetic_pair
from eagle_jax.text.tokenizers import fingerprint, refuse_other_tokenizer, tokenizer_in

TARGET, HEAD = synthetic_pair()
BARE = api.Model(target=TARGET, head=None, tokenizer=None, stop_ids=(), context=128)
WITH_HEAD = dataclasses.replace(BARE, head=HEAD)
MEDUSA = dataclasses.replace(BARE, head=synthetic_medusa(TARGET, num_heads=4))


def with_dflash(**flags) -> api.Model:
    settings = dict(layers=TINY, taps=(0, 2), target_hidden_size=32, block_size=16, mask_token_id=60) | flags
    return dataclasses.replace(BARE, head=DFlash.init(DFlashConfig(**settings), jax.random.key(0)))


def with_peagle(num_drafted: int = 8) -> api.Model:
    mask = MaskConfig(token_id=60, num_drafted=num_drafted)
    config = Eagle3Config(layers=TINY, taps=(0, 2), target_hidden_size=32, draft_vocab_size=61, mask=mask)
    return dataclasses.replace(BARE, head=Head3.init(config, jax.random.key(0)))


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_in(PAIR / "target")


def test_auto_is_what_there_is():
    assert drafter_for(BARE, "auto", "auto") == Plain()
    assert isinstance(drafter_for(WITH_HEAD, "auto", "auto").drafter, Eagle)
    assert isinstance(drafter_for(MEDUSA, "auto", "auto").drafter, MedusaDrafter)
    assert isinstance(drafter_for(with_dflash(), "auto", "auto").drafter, DFlashDrafter)
    assert isinstance(drafter_for(with_peagle(), "auto", "auto").drafter, PEagle)
    assert drafter_for(dataclasses.replace(BARE, draft=TARGET), "auto", "auto").drafter.model is TARGET


def test_published_sizes_are_asked_for_by_name():
    assert drafter_for(WITH_HEAD, "eagle", "published").shape == DynamicTree(60, 7, 10)
    assert drafter_for(WITH_HEAD, "eagle", "eagle1").shape == EAGLE1_TREE
    assert drafter_for(MEDUSA, "medusa", "published").shape == MEDUSA_TREE
    assert drafter_for(dataclasses.replace(BARE, head=synthetic_hydra(TARGET)), "hydra", "published").shape.depth == 3
    assert drafter_for(with_dflash(), "dflash", "published").shape == DynamicTree(16, 14, 1)
    assert drafter_for(with_dflash(causal_layers=(0, 1)), "dflash", "published").shape == DynamicTree(128, 14, 7, 127)
    assert drafter_for(with_peagle(), "peagle", "published").shape == DynamicTree(9, 7, 1)
    assert drafter_for(BARE, "prompt-lookup", "published") == PromptLookup(copied=10)
    assert drafter_for(BARE, "token-recycling", "published").shape.nodes == 80
    assert drafter_for(BARE, "lookahead", "published").shape.nodes == 57
    assert isinstance(drafter_for(WITH_HEAD, "hybrid", "published"), Hybrid)


def test_every_method_is_small_on_a_cpu():
    for name in ("eagle", "token-recycling", "prompt-lookup", "lookahead", "hybrid"):
        assert drafter_for(WITH_HEAD, name, "auto").shape.nodes <= 10, name


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.needs[0]])
def test_what_a_method_needs_is_named(name):
    with pytest.raises(ValueError, match=f'drafter="{name}" needs .*; load it with'):
        drafter_for(BARE, name, "auto")


def test_one_head_is_enough():
    one = dataclasses.replace(BARE, head=synthetic_medusa(TARGET, num_heads=1))
    assert drafter_for(one, "auto", "auto").shape.depth == drafter_for(one, "auto", "published").shape.depth == 1


@pytest.mark.matrix
@pytest.mark.parametrize("block_size", [2, 3, 4, 16])
@pytest.mark.parametrize("causal_layers", [(), (0, 1)])
@pytest.mark.parametrize("selector", [None, SelectorConfig(4, 3)])
def test_trees_of_any_room_fit_the_block(block_size, causal_layers, selector):
    model = with_dflash(block_size=block_size, causal_layers=causal_layers, selector=selector)
    for small, most in itertools.product((True, False), (2, 3, 5, 9, 60, 1000)):
        tree = METHODS["dflash"].trees(model, small, most)
        assert tree.nodes <= most and tree.depth < block_size and tree.max_children <= model.head.max_children
    assert drafter_for(model, "auto", "auto").shape.nodes <= 6


@pytest.mark.parametrize("num_drafted", [1, 2, 3, 12])
def test_trees_of_any_room_fit_a_pass(num_drafted):
    model = with_peagle(num_drafted)
    for small, most in itertools.product((True, False), (2, 3, 5, 9, 60, 1000)):
        tree = METHODS["peagle"].trees(model, small, most)
        assert tree.nodes <= most and tree.depth <= num_drafted
    assert drafter_for(model, "auto", "auto").shape.nodes <= 6


@pytest.mark.parametrize("name", ["eagle", "eagle3", "hybrid", "medusa"])
def test_a_head_of_another_method_is_named(name):
    """P-EAGLE's heads have the class of EAGLE-3's, and EAGLE-3's are no P-EAGLE heads."""
    with pytest.raises(ValueError, match='and the model has a P-EAGLE head, which drafts with drafter="peagle"; load'):
        choose(with_peagle(), name, "auto")
    with pytest.raises(ValueError, match="needs a P-EAGLE head, and the model has an EAGLE head, which drafts with"):
        choose(WITH_HEAD, "peagle", "auto")


def test_a_drafter_object_has_its_own_tree():
    with pytest.raises(ValueError, match="leave tree out"):
        drafter_for(BARE, PromptLookup(), (60, 7, 10))


def test_a_method_without_trees_takes_none():
    with pytest.raises(ValueError, match="no choice of trees"):
        drafter_for(BARE, "prompt-lookup", (60, 7, 10))


def test_token_recycling_grows_no_trees():
    with pytest.raises(ValueError, match="fixed shape, not DynamicTree.*give the parents of its nodes"):
        drafter_for(BARE, "token-recycling", (8, 2, 2))
    assert drafter_for(BARE, "token-recycling", "eagle1").shape.nodes == EAGLE1_TREE.nodes


def test_a_tree_wider_than_the_vocabulary_makes_no_drafter():
    with pytest.raises(ValueError, match="62 best tokens below a node, but the vocabulary has 61"):
        Eagle(head=HEAD, policy=DynamicTree(70, 1, 62))
    with pytest.raises(ValueError, match="62 best tokens below a node, but the vocabulary has 61"):
        MedusaDrafter(head=synthetic_medusa(TARGET), policy=DynamicTree(70, 1, 62))
    with pytest.raises(ValueError, match="62 best tokens below a node, but the vocabulary has 61"):
        HydraDrafter(head=synthetic_hydra(TARGET), policy=DynamicTree(70, 1, 62))


def test_another_tokenizer_is_refused(tokenizer, tmp_path):
    changed = json.loads((PAIR / "target" / "tokenizer.json").read_text())
    vocabulary = changed["model"]["vocab"]
    one, two = list(vocabulary)[1000:1002]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    (tmp_path / "tokenizer_config.json").write_text((PAIR / "target" / "tokenizer_config.json").read_text())
    other = tokenizer_in(tmp_path)
    refuse_other_tokenizer(tokenizer, tokenizer_in(PAIR / "target"), "the draft model")
    with pytest.raises(ValueError, match="the draft model has another tokenizer than the target: 2 of their tokens"):
        refuse_other_tokenizer(tokenizer, other, "the draft model")
    assert fingerprint(other) != fingerprint(tokenizer)


def test_a_datastore_is_made_once_and_drafts(tokenizer, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Tom has 3 apples. " * 4)
    chats = tmp_path / "chats.jsonl"
    question, answer = "How many eggs are two dozen?", "Two dozen eggs are 24 eggs."
    chats.write_text(json.dumps({"question": question, "answer": answer}) + "\n")
    to = tmp_path / "made" / "store.safetensors"
    texts, tokens = api.make_datastore(tokenizer, [text, chats], to)
    assert texts == 2 and tokens > 40

    model = eagle_jax.load(datastore=to)
    said = tokenizer.encode(text.read_text(), add_special_tokens=False)
    stored = np.asarray(model.datastore.tokens).tolist()
    assert stored[: len(said)] == said and stored[len(said)] == -1 and len(stored) == tokens + 2
    rest, none = (
        eagle_jax.generate(model, "Tom has 3 apples. Tom has", max_new_tokens=12, drafter=name)
        for name in ("rest", "none")
    )
    assert rest.token_ids == none.token_ids

    assert api.make_datastore(tokenizer, [text, chats], to, limit=5) == (1, 5)
    before = to.read_bytes()
    with pytest.raises(ValueError, match="no text"):
        (tmp_path / "empty.txt").write_text("")
        api.make_datastore(tokenizer, [tmp_path / "empty.txt"], to)
    assert to.read_bytes() == before


def test_records_that_are_no_texts_are_named(tokenizer, tmp_path):
    chats = tmp_path / "chats.jsonl"
    said = [{"role": role, "content": "Hi"} for role in ("system", "user", "assistant")]
    chats.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in (said[1:], said)))
    chats.write_text(chats.read_text() + "no JSON\n")
    left_out = []
    texts, _ = api.make_datastore(tokenizer, [chats], tmp_path / "store.safetensors", skipped=left_out.append)
    assert texts == 1 and [skipped.place for skipped in left_out] == [f"{chats}:{line}" for line in (2, 3)]
    assert "does not fit the model's chat template" in left_out[0].reason
    chats.write_text("no JSON\n" * 2)
    with pytest.raises(
        ValueError, match=r"no text in .*chats.jsonl \(records left out: 2, .*chats.jsonl:1: .+\); a data"
    ):
        api.make_datastore(tokenizer, [chats], tmp_path / "store.safetensors")


def test_a_datastore_of_tokens_that_the_target_does_not_have_is_refused(tokenizer, tmp_path):
    about = {"kind": "eagle_jax datastore", "tokenizer": fingerprint(tokenizer)}
    save_file({name: np.array([1, 5000], np.int32) for name in ("tokens", "order")}, tmp_path / "store", about)
    with pytest.raises(ValueError, match="store holds token 5000 and the target has 2048 tokens; make one with"):
        eagle_jax.load(datastore=tmp_path / "store")


def test_a_datastore_takes_the_place_of_datastores_alone(tokenizer, tmp_path):
    text, notes, folder = tmp_path / "text.txt", tmp_path / "notes.txt", tmp_path / "folder"
    text.write_text("Tom has 3 apples.")
    notes.write_text("mine")
    other = tmp_path / "other.safetensors"
    save_file({"tokens": np.zeros(3, np.int32)}, other)
    link = tmp_path / "link.txt"
    link.symlink_to(text)
    folder.mkdir()
    cases = ((text, "input and output"), (link, "input and output"), (folder, "is a folder"))
    for to, why in (*cases, (notes, "no datastore"), (other, "no datastore")):
        before = sorted(tmp_path.iterdir()), None if to.is_dir() else to.read_bytes()
        with pytest.raises(ValueError, match=f"{to.name} .*{why}; name"):
            api.make_datastore(tokenizer, [text], to)
        assert (sorted(tmp_path.iterdir()), None if to.is_dir() else to.read_bytes()) == before


def test_a_datastore_that_cannot_be_written_leaves_nothing(tokenizer, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no space left")

    text, made = tmp_path / "text.txt", tmp_path / "made"
    text.write_text("Tom has 3 apples.")
    monkeypatch.setattr("eagle_jax.loading.datastore.save", fail)
    with pytest.raises(OSError, match="no space left"):
        api.make_datastore(tokenizer, [text], made / "store.safetensors")
    assert list(made.iterdir()) == []


def test_what_is_no_datastore(tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match="eagle-jax datastore"):
        eagle_jax.load(datastore=tmp_path / "none.safetensors")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged"):
        eagle_jax.load(datastore=bad)
    save_file({"tokens": np.zeros(3, np.int32)}, bad)
    with pytest.raises(ValueError, match="no datastore"):
        eagle_jax.load(datastore=bad)
    about = {"kind": "eagle_jax datastore", "tokenizer": "other"}
    save_file({"tokens": np.zeros(3, np.int32), "order": np.zeros(3, np.int32)}, bad, metadata=about)
    with pytest.raises(ValueError, match="another tokenizer"):
        eagle_jax.load(datastore=bad)


def test_a_draft_model_drafts():
    """The target as its own draft model: every guess is right."""
    model = eagle_jax.load(draft=PAIR / "target")
    assert jax.tree.leaves(model.draft.params)[0].dtype == jax.tree.leaves(model.target.params)[0].dtype
    asked = dict(max_new_tokens=13, drafter="draft-model", tree=(4, 2, 1))
    result = eagle_jax.generate(model, [{"role": "user", "content": "How far is 60 miles?"}], **asked)
    assert result.stats.accepted_lengths == [4, 4, 4]


def test_where_a_prompt_is_long_for_its_answer_nothing_is_drafted_by_default(monkeypatch):
    monkeypatch.setattr(choice, "budget_for", lambda *_: None)
    monkeypatch.setattr(
        choice,
        "cpu_default",
        lambda model: DefaultTree(DynamicTree(3, 1, 1), max_batch_nodes=3, min_nodes=3, max_prompt_ratio=6),
    )
    assert isinstance(choose(WITH_HEAD, "auto", "auto").for_batch(prompt_ratio=6.0).drafter, Eagle)
    assert choose(WITH_HEAD, "auto", "auto").for_batch(prompt_ratio=6.1) == Plain()
    asked = choose(WITH_HEAD, "auto", (3, 1, 1)).for_batch(prompt_ratio=6.1)
    assert isinstance(asked.drafter, Eagle), "a tree that was asked for"
    recycling = choose(BARE, "token-recycling", "auto").for_batch(prompt_ratio=6.1)
    assert isinstance(recycling, TokenRecycling), "it reads no prompt"


@pytest.mark.parametrize("least", [0, 0.0, np.float32(0.5), 0.5])
def test_chains_that_are_asked_for(least):
    assert tree_policy((6, least)) == DynamicTree.chain(6, float(least))
    assert tree_policy(DynamicTree.chain(6, 0.5)) == DynamicTree.chain(6, 0.5)
