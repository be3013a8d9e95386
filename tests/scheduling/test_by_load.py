"""Drafters by the number of rows that take part in a step: one state, and the tree that pays for so many."""

import dataclasses

import jax
import pytest
from test_drafters import BARE, MEDUSA, TARGET, WITH_HEAD, with_dflash, with_peagle

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.paused import Paused, Ready
from eagle_jax.drafters.prompt_lookup import PromptLookup
from eagle_jax.methods.choice import choose
from eagle_jax.scheduling.by_load import ByLoad, by_load
from eagle_jax.sharding import sharding_of
from eagle_jax.testing import synthetic_hydra


def loads(model, rows, drafter="auto", tree="auto"):
    return by_load(choose(model, drafter, tree), rows, steps=4)


def test_many_decode_plainly_while_the_head_reads_along():
    found = loads(WITH_HEAD, 8).entries
    assert [*dict.fromkeys(rows for rows, _ in found)] == [1, 2, 4, 8]
    assert isinstance(found[0][1], Ready) and isinstance(found[0][1].drafter.drafter, Eagle)
    assert isinstance(found[-1][1], Paused) and found[-1][1].drafter == found[0][1].drafter


def test_what_was_asked_for_is_drafted_with_at_every_load():
    found = loads(WITH_HEAD, 8, tree=(6, 2, 2)).entries
    assert {drafter.shape for _, drafter in found} == {DynamicTree(6, 2, 2)}
    assert loads(BARE, 4).entries == ((1, Plain()), (2, Plain()), (4, Plain()))
    assert {type(drafter) for _, drafter in loads(BARE, 4, "prompt-lookup").entries} == {PromptLookup}


def test_beside_each_tree_is_plain_decoding_and_for_few_the_smallest_tree():
    found = loads(WITH_HEAD, 8).entries
    nodes = {size: [drafter.shape.nodes for rows, drafter in found if rows == size] for size in (1, 2, 4, 8)}
    assert all(1 in of_size and len(set(of_size)) == len(of_size) for of_size in nodes.values())
    assert nodes[1][0] > 2 and 2 in nodes[1] and 2 in nodes[2] and nodes[8] == [1]
    assert all(isinstance(drafter, Paused) == (drafter.shape.nodes == 1) for _, drafter in found)
    assert {drafter.shape for _, drafter in loads(WITH_HEAD, 8, "eagle", (2, 0, 1)).entries} == {DynamicTree(2, 0, 1)}
    first = [drafter.shape.nodes for rows, drafter in found if rows == 1][0]
    assert str(loads(WITH_HEAD, 1)) == f"trees of {first} nodes at first"


@pytest.mark.parametrize(
    "model",
    {
        "eagle": WITH_HEAD,
        "medusa": MEDUSA,
        "dflash": with_dflash(),
        "peagle": with_peagle(),
        "hydra": dataclasses.replace(BARE, head=synthetic_hydra(TARGET)),
        "draft model": dataclasses.replace(BARE, draft=TARGET),
    }.items(),
    ids=lambda item: item[0],
)
def test_all_of_them_remember_the_same(model):
    drafters = [drafter for _, drafter in loads(model[1], 8).entries]
    assert len(set(map(type, drafters))) > 1
    states = [jax.eval_shape(lambda one=one: one.init(TARGET, 2, 128)) for one in drafters]
    assert all(state == states[0] for state in states) and len({one.taps for one in drafters}) == 1


def test_sizes_grow_faster_where_there_are_many():
    assert [rows for rows, _ in loads(BARE, 64).entries] == [1, 2, 4, 8, 32, 64]
    assert [rows for rows, _ in loads(BARE, 6).entries] == [1, 2, 4, 8]


def test_it_says_what_is_drafted():
    assert str(loads(BARE, 8)) == "no drafting"
    assert str(loads(WITH_HEAD, 8, tree=(6, 2, 2))) == "trees of 6 nodes"
    trees = [Eagle(head=WITH_HEAD.head, policy=DynamicTree(nodes, 2, 2)) for nodes in (6, 4, 4)]
    entries = tuple(zip((1, 2, 4, 8), [*trees, Paused(trees[0], 4)], strict=True))
    assert str(ByLoad(entries)) == "trees by answers at a time (6 nodes for 1, 4 nodes for 4, none for 8)"


def test_over_several_devices_all_rows_take_part():
    model = dataclasses.replace(WITH_HEAD, sharding=sharding_of("data:2", TARGET.config))
    assert [rows for rows, _ in loads(model, 8).entries] == [8]


def test_the_smallest_that_has_room():
    entries = tuple((rows, PromptLookup(copied=rows)) for rows in (1, 2, 8))
    assert [ByLoad(entries).for_rows(count) for count in (1, 2, 3, 8)] == [entries[at] for at in (0, 1, 2, 2)]
