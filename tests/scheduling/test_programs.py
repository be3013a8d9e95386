"""Few programs serve all requests: what makes one anew, and what does not."""

import collections
import functools
import gc
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.scheduling import programs
from eagle_jax.scheduling.sizes import bucket
from eagle_jax.sharding import sharded
from eagle_jax.struct import Packed, pytree, static


@functools.partial(jax.jit, static_argnames="power")
def scaled(tree: dict[str, jax.Array], *, power: int) -> jax.Array:
    return tree["a"] ** power


@jax.jit
def summed(a: jax.Array, b: jax.Array) -> jax.Array:
    return a + b


def call(array: jax.Array | np.ndarray, power: int = 2) -> tuple[list[float], bool]:
    """The result, and whether a program was compiled for it."""
    before = programs.compiled()
    result, seconds = programs.call(scaled, {"a": array}, power=power)
    compiled = programs.compiled() > before
    assert compiled == (seconds > 0)
    return result.tolist(), compiled


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(programs, "_programs", collections.OrderedDict())
    monkeypatch.setattr(programs, "_maps_kept", 0)


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
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 2)
    one, two, three = (jnp.ones(size) for size in (1, 2, 3))
    assert [call(array)[1] for array in (one, two, one, three)] == [True, True, False, True]
    assert [call(array)[1] for array in (one, three, two)] == [False, False, True]


def test_programs_make_room_where_the_system_has_no_more(monkeypatch):
    """Each takes a hundred of a thousand memory maps here; LLVM ends a process that gets no more."""
    cleared = []
    counts = {
        "/proc/sys/vm/max_map_count": lambda: 1000,
        "/proc/self/maps": lambda: 100 + 100 * len(programs._programs),
    }
    monkeypatch.setattr(programs, "_count_in", lambda path, count: counts[path]())
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(len(programs._programs)))
    arrays = [jnp.ones(size) for size in range(1, 12)]
    for array in arrays:
        call(array)
        assert counts["/proc/self/maps"]() <= 800
    assert cleared == [3, 3] and not call(arrays[-1])[1] and call(arrays[0])[1]

    counts["/proc/self/maps"] = lambda: 990  # all of them somebody else's: dropping more does not help
    assert [call(array)[1] for array in (*arrays[1:5], *arrays[1:5])] == [True] * 4 + [False] * 4
    assert len(cleared) == 3
    monkeypatch.setattr(programs, "_count_in", lambda path, count: None)  # no Linux
    assert call(arrays[6])[1] and len(cleared) == 3


@pytest.mark.skipif(not pathlib.Path("/proc/self/maps").exists(), reason="counts what Linux tells")
def test_what_is_dropped_is_gone(monkeypatch):
    """JAX has caches of its own, which would keep it."""

    def kept() -> int:
        gc.collect()
        count = programs._count_in(*programs.MAPS[1])
        assert count
        return count

    arrays = [jnp.ones(size) for size in range(100, 140)]
    before = kept()
    for array in arrays:
        call(array)
    grown = kept() - before
    programs._forget(len(arrays))
    assert kept() - before > grown / 2
    jax.clear_caches()
    assert grown > 40 and kept() - before < grown / 2


def test_a_file_that_is_not_there_counts_nothing(tmp_path):
    (tmp_path / "count").write_text("65530\n")
    assert programs._count_in(str(tmp_path / "count"), lambda file: int(file.read())) == 65530
    assert programs._count_in(str(tmp_path / "none"), lambda file: int(file.read())) is None


def test_buckets_are_few_and_waste_little():
    sizes = range(1, 4097)
    for slots in sizes:
        assert slots <= bucket(slots) < slots + max(128, slots / (2 if slots < 1024 else 8) + 1)
        assert bucket(bucket(slots)) == bucket(slots)
    assert [bucket(slots) for slots in sizes] == sorted(bucket(slots) for slots in sizes)
    assert [size for size in sizes[:1024] if bucket(size) == size] == [128, 256, 384, 512, 768, 1024]
    assert len({bucket(slots) for slots in sizes}) == 6 + 8 + 8
    assert bucket(4096 + 9) == 4608


@pytree
class Model:
    """As many arrays as are worth remembering."""

    arrays: tuple[jax.Array, ...]
    power: int = static(default=1)


@jax.jit
def added(model: Model) -> jax.Array:
    return sum(array.sum() for array in model.arrays) ** model.power


def of_size(size: int, power: int = 1) -> Model:
    return Model(tuple(jnp.ones(size) for _ in range(programs.MIN_CACHED_LEAVES)), power)


def test_models_are_told_apart_however_often_they_come():
    small, large, squared = of_size(2), of_size(3), of_size(2, power=2)
    for _ in range(2):
        got = [float(programs.call(added, model)[0]) for model in (small, large, squared, of_size(2))]
        leaves = programs.MIN_CACHED_LEAVES
        assert got == [2 * leaves, 3 * leaves, (2 * leaves) ** 2, 2 * leaves]
    assert len(programs._programs) == 3


@functools.partial(jax.jit, static_argnames="sharding")
@sharded
def total(model: Model, *, sharding: None = None) -> jax.Array:
    return sum(array.sum() for array in model.arrays) ** model.power


def test_a_packed_model_is_the_model():
    model, squared = of_size(2), of_size(2, power=2)
    assert isinstance(programs.packed(model), Packed) and programs.packed(model) is programs.packed(model)
    got = [float(programs.call(total, programs.packed(one), sharding=None)[0]) for one in (model, squared, of_size(2))]
    leaves = programs.MIN_CACHED_LEAVES
    assert got == [2 * leaves, (2 * leaves) ** 2, 2 * leaves] and len(programs._programs) == 2


def test_a_model_that_may_change_is_not_packed():
    """A target of a caller's own need not be a frozen dataclass."""

    class Changing:
        arrays = (jnp.ones(2),)

    for model in (Changing(), (jnp.ones(2),)):
        assert programs.packed(model) is model
    gc.collect()
    before = len(programs._packed)
    model = of_size(3)
    programs.packed(model)
    assert len(programs._packed) == before + 1
    del model
    gc.collect()
    assert len(programs._packed) == before


def test_keyed_arguments_share_a_program():
    one, other = (
        programs.KeyedArgs("a", (jnp.ones(2), jnp.ones(2))),
        programs.KeyedArgs("b", (jnp.ones(3), jnp.ones(3))),
    )
    ran = [programs.call(summed, alike)[0].tolist() for alike in (one, other, one)]
    assert ran == [[2, 2], [2, 2, 2], [2, 2]] and len(programs._programs) == 2


def test_what_is_on_the_host_has_the_program_of_what_is_not():
    assert call(jnp.array([1.0, 2.0])) == ([1.0, 4.0], True)
    assert call(np.array([3.0, 4.0], np.float32)) == ([9.0, 16.0], False)


def test_a_model_that_is_gone_is_forgotten():
    gc.collect()
    before = len(programs._kinds)
    model = of_size(5)
    programs.ready(added, model)
    assert len(programs._kinds) == before + 1
    del model
    gc.collect()
    assert len(programs._kinds) == before
