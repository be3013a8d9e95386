"""The way of a prompt from `generate` to a step of the loop is short, and never returns to a room that it left."""

import collections

import jax
from speller import DYNAMIC, RANDOM
from walking import Call, rooms, walk

import eagle_jax
from eagle_jax.loop import decode
from eagle_jax.scheduling import programs

ROOMS = ["scheduling", "sharding", "loop"]


def test_the_way_from_generate_to_a_step(monkeypatch):
    walks: set[tuple[Call, ...]] = set()
    step = decode.step

    def watched(*args):
        walks.add(walk())
        return step(*args)

    jax.clear_caches()
    monkeypatch.setattr(programs, "_programs", collections.OrderedDict())  # the loop is traced again
    monkeypatch.setattr(decode, "step", watched)
    eagle_jax.generate(RANDOM, [1, 2, 3], max_new_tokens=4, **DYNAMIC)

    [functions] = walks
    assert functions[0] == ("scheduling", "generate") and len(functions) + 1 <= 12, functions  # and step itself
    assert rooms(functions) == ROOMS, functions
