"""Few programs serve all requests: what makes one anew, and what does not."""

import collections
import functools

import jax
import jax.numpy as jnp
import pytest

from eagle_jax.api import programs
from eagle_jax.api.batch import bucket


@functools.partial(jax.jit, static_argnames="power")
def scaled(tree: dict[str, jax.Array], *, power: int) -> jax.Array:
    return tree["a"] ** power


def call(array: jax.Array, power: int = 2) -> tuple[list[float], bool]:
    """The result, and whether a program was compiled for it."""
    before = programs.compiled()
    result, seconds = programs.call(scaled, {"a": array}, power=power)
    compiled = programs.compiled() > before
    assert compiled == (seconds > 0)
    return result.tolist(), compiled


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(programs, "_programs", collections.OrderedDict())


def test_values_do_not_matter():
    assert call(jnp.array([1.0, 2.0])) == ([1.0, 4.0], True)
    assert call(jnp.array([3.0, 4.0])) == ([9.0, 16.0], False)


def test_shapes_dtypes_and_static_arguments_do():
    call(jnp.array([1.0, 2.0]))
    assert call(jnp.array([3.0])) == ([9.0], True)
    assert call(jnp.array([3, 4])) == ([9, 16], True)
    assert call(jnp.array([3.0, 4.0]), power=3) == ([27.0, 64.0], True)
    assert call(jnp.array([1.0, 2.0])) == ([1.0, 4.0], False)


def test_the_one_used_longest_ago_makes_room(monkeypatch):
    monkeypatch.setattr(programs, "MOST", 2)
    one, two, three = (jnp.ones(size) for size in (1, 2, 3))
    assert [call(array)[1] for array in (one, two, one, three)] == [True, True, False, True]
    assert [call(array)[1] for array in (one, three, two)] == [False, False, True]


def test_buckets_are_few_and_waste_little():
    sizes = range(1, 4097)
    for slots in sizes:
        assert slots <= bucket(slots) < slots + max(128, slots / (2 if slots < 1024 else 8) + 1)
        assert bucket(bucket(slots)) == bucket(slots)
    assert [bucket(slots) for slots in sizes] == sorted(bucket(slots) for slots in sizes)
    assert [size for size in sizes[:1024] if bucket(size) == size] == [128, 256, 384, 512, 768, 1024]
    assert len({bucket(slots) for slots in sizes}) == 6 + 8 + 8
    assert bucket(4096 + 9) == 4608
