"""The memory that kept prefixes may take: cut where it is short, and given back."""

import jax.numpy as jnp
import numpy as np

from eagle_jax.scheduling.prefix_cache import PATIENCE, Block, PrefixCache

RNG = np.random.default_rng(0)
NUMBER = jnp.zeros(1, jnp.int32)
BLOCK = Block(NUMBER[0], kv=(), state=(NUMBER, NUMBER, NUMBER))
SIZE = 16  # bytes of it


def kept(prefixes: PrefixCache, count: int) -> list[float]:
    """The budget, in blocks, after each of so many blocks of as many prompts."""
    budgets = []
    for _ in range(count):
        prefixes.keep([RNG.bytes(8)], BLOCK)
        assert prefixes.bytes <= prefixes.budget
        budgets.append(prefixes.budget / SIZE)
    return budgets


SHORT = RuntimeError("RESOURCE_EXHAUSTED: out of memory")


def test_a_budget_that_was_cut_grows_back():
    prefixes = PrefixCache(12 * SIZE)
    assert kept(prefixes, 100) == [12] * 100
    prefixes.recover(SHORT)
    assert prefixes.bytes == 0 and prefixes.budget == 6 * SIZE
    assert kept(prefixes, PATIENCE) == [6] * (PATIENCE - 1) + [12]
    assert kept(prefixes, 200) == [12] * 200, "and no further"
    prefixes.recover(SHORT)
    assert kept(prefixes, 2 * PATIENCE) == [6] * (2 * PATIENCE - 1) + [12], "it waits for longer"


def test_memory_that_is_short_again_and_again_leaves_room_for_a_block():
    prefixes = PrefixCache(12 * SIZE)
    prefixes.recover(SHORT)
    assert prefixes.budget == 12 * SIZE, "nothing was kept that could have been given up"
    for _ in range(20):
        kept(prefixes, 3)
        prefixes.recover(SHORT)
        prefixes.recover(SHORT)
    assert prefixes.budget == SIZE and kept(prefixes, 1) == [1] and prefixes.bytes == SIZE
    off = PrefixCache(0)
    assert kept(off, 2 * PATIENCE) == [0] * 2 * PATIENCE
