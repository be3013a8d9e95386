"""The way of a prompt from `generate` to a step of the loop is short, and never returns to a room that it left."""

import collections
import inspect
import itertools

import jax
from speller import DYNAMIC, RANDOM

import eagle_jax
from eagle_jax.loop import decode
from eagle_jax.scheduling import programs

ROOMS = ["scheduling", "sharding", "loop"]


def test_the_way_from_generate_to_a_step(monkeypatch):
    walks: list[list[tuple[str, str]]] = []
    step = decode.step

    def watched(*args):
        walks.append(walk())
        return step(*args)

    jax.clear_caches()
    monkeypatch.setattr(programs, "_programs", collections.OrderedDict())  # the loop is traced again
    monkeypatch.setattr(decode, "step", watched)
    eagle_jax.generate(RANDOM, [1, 2, 3], max_new_tokens=4, **DYNAMIC)

    [functions] = {tuple(walk) for walk in walks}
    assert functions[0] == ("scheduling", "generate") and len(functions) + 1 <= 12, functions  # and step itself
    assert [room for room, _ in itertools.groupby(room for room, _ in functions)] == ROOMS, functions


def walk() -> list[tuple[str, str]]:
    """Functions of the package that are being called, outermost first, each with its room."""
    frames = [(frame.frame.f_globals.get("__name__", ""), frame.function) for frame in reversed(inspect.stack())]
    return [(module.split(".")[1], function) for module, function in frames if module.startswith("eagle_jax.")]
