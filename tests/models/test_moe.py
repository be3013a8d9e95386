"""Experts against a slow, obvious loop over rows, for every way of multiplying."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.target import Experts
from eagle_jax.models import moe
from eagle_jax.ops import experts

EXPERTS, HIDDEN, WIDE = 5, 8, 6
EACH = 2
WAYS = {"gathered": experts.gathered, "grouped": experts.grouped, "in_blocks": experts.in_blocks}
# Expert 3 idle; every row with the same two experts; every pair with one expert alone.
CHOICES = {"mixed": [[0, 2], [4, 2], [2, 0], [1, 2], [2, 4], [2, 1], [0, 1]], "same": [[4, 1]] * 7, "one": [[3, 3]] * 7}


@pytest.fixture(scope="module")
def stacks() -> experts.Stacks:
    random = np.random.default_rng(0)
    shapes = {"gate": (EXPERTS, WIDE, HIDDEN), "up": (EXPERTS, WIDE, HIDDEN), "down": (EXPERTS, HIDDEN, WIDE)}
    return experts.Stacks(**{name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((7, HIDDEN)).astype(np.float32)


def slow(rows: np.ndarray, expert: np.ndarray, stacks: experts.Stacks) -> np.ndarray:
    made = []
    for pair, number in enumerate(expert):
        x = rows[pair // EACH]
        gate, up = stacks.gate[number] @ x, stacks.up[number] @ x
        made.append(stacks.down[number] @ (gate / (1 + np.exp(-gate)) * up))
    return np.stack(made)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_the_slow_loop(way: str, rows: np.ndarray, stacks: experts.Stacks):
    multiply = jax.jit(WAYS[way])
    for chosen in CHOICES.values():
        expert = np.array(chosen, np.int32).reshape(-1)
        np.testing.assert_allclose(multiply(rows, expert, stacks), slow(rows, expert, stacks), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_weights_are_multiplied_in_bfloat16_and_added_in_float32(
    way: str, rows: np.ndarray, stacks: experts.Stacks
):
    halves = jax.tree.map(lambda stack: jnp.asarray(stack, jnp.bfloat16), stacks)
    expert = np.array(CHOICES["mixed"], np.int32).reshape(-1)
    made = jax.jit(WAYS[way])(rows, expert, halves)
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, slow(rows, expert, stacks), rtol=0.1, atol=0.1)


def test_one_row_and_many_rows_are_in_blocks_of_their_size(rows: np.ndarray, stacks: experts.Stacks):
    """A row's result does not depend on the rows that go with it."""
    many = np.tile(rows, (40, 1))
    expert = np.tile(np.array(CHOICES["mixed"], np.int32).reshape(-1), 40)
    together = np.asarray(jax.jit(experts.in_blocks)(many, expert, stacks))
    alone = jax.jit(experts.in_blocks)(rows[:1], expert[:EACH], stacks)
    np.testing.assert_allclose(together[:EACH], alone, atol=1e-5)
    np.testing.assert_allclose(together[: 7 * EACH], slow(rows, expert[: 7 * EACH], stacks), rtol=1e-4, atol=1e-4)


def test_shares():
    logits = jnp.log(jnp.array([[0.1, 0.4, 0.2, 0.3]]))
    config = Experts(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=1, norm_topk_prob=False)
    chosen, share = moe.route(logits, config)
    np.testing.assert_array_equal(chosen, [[1, 3]])
    np.testing.assert_allclose(share, [[0.4, 0.3]], rtol=1e-6)
    _, share = moe.route(logits, Experts(**vars(config) | {"norm_topk_prob": True}))
    np.testing.assert_allclose(share, [[4 / 7, 3 / 7]], rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 64])
def test_no_row_meets_every_expert(rows: int):
    """Counted in the compiled program: products grow with the pairs, not with rows times experts."""
    many = 32
    shapes = experts.Stacks(*(jax.ShapeDtypeStruct((many, HIDDEN, HIDDEN), jnp.float32),) * 3)
    inputs = jax.ShapeDtypeStruct((rows, HIDDEN), jnp.float32), jax.ShapeDtypeStruct((rows * EACH,), jnp.int32)
    program = jax.jit(experts.apply_experts).lower(*inputs, shapes).as_text()
    pairs = rows * EACH
    assert not re.search(rf"tensor<({many}x{pairs}|{pairs}x{many})x\d+xf32>", program)
    assert "dot_general" in program and "ragged_dot" not in program
