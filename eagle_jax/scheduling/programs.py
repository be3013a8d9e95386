"""Compiled programs, one per bucket of shapes, and the seconds that compiling them took."""

import collections
import contextlib
import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TextIO

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from eagle_jax.sharding import placement
from eagle_jax.struct import Packed

FULL_SHARE, NEW_SHARE = 0.6, 0.1  # share of all maps with which room is made, and that must be new since it was made
MAPS = (  # how many a process may have, and how many this one has
    ("/proc/sys/vm/max_map_count", lambda file: int(file.read())),
    ("/proc/self/maps", lambda file: sum(1 for _ in file)),
)
MAX_PROGRAMS = 128  # an engine has a few dozen; trees of callers' own make more, each of some megabytes
MIN_CACHED_LEAVES = 8  # signatures of arguments are cached from this many leaves on
_programs: collections.OrderedDict[Any, Any] = collections.OrderedDict()  # by last use
_lock = threading.Lock()  # several engines compile and look up at the same time
_compiled = 0
_maps_kept = 0  # maps that there were after room was made


class _CompileTimes(threading.local):
    """When one thread compiled: from, to, by `time.perf_counter`."""

    def __init__(self) -> None:
        self.compiling: list[tuple[float, float]] = []


_compile_times = _CompileTimes()


def call(function: Any, *args: Any, **fixed: Any) -> tuple[Any, float]:
    """Runs `function(*args, **fixed)` through its compiled program, and the seconds spent on compiling it (0 when it
    was ready).

    Compiling ahead of the call keeps it out of every timing. The key is all that can change the program: the structure
    of the arguments (static fields included), their shapes, dtypes and places, and the keyword arguments, which are
    static. Of `KeyedArgs`, which are given one by one, it is their key.
    """
    program, seconds = ready(function, *args, **fixed)
    return program(*_flat_args(args)), seconds


def ready(function: Any, *args: Any, **fixed: Any) -> tuple[Any, float]:
    """Returns the compiled program that `call` would run, and the seconds spent on compiling it.

    Up to `MAX_PROGRAMS` are kept, fewer if the process runs out of memory maps. Dropping some clears JAX's caches of
    the whole process: other libraries' functions under `jax.jit` are compiled again in their next call.
    """
    global _compiled
    key = (function, tuple([_kind_of(arg) for arg in args]), tuple(sorted(fixed.items())))
    with _lock:
        if key in _programs:
            _programs.move_to_end(key)
            return _programs[key], 0.0
    _make_room()
    start = time.perf_counter()
    program = function.lower(*_flat_args(args), **fixed).compile()
    seconds = time.perf_counter() - start
    _compile_times.compiling.append((start, start + seconds))
    with _lock:
        _compiled += 1
        _programs[key] = program
        many = len(_programs) > MAX_PROGRAMS
        if many:
            _forget(-(-MAX_PROGRAMS // 4))
    if many:
        jax.clear_caches()
    return program, seconds


def shapes_of(tree: Any) -> Any:
    """Returns the tree with shapes instead of its arrays, which may have been donated; `ready` takes it."""

    def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
        place = getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=None if place == _usual_place() else place)

    return jax.tree.map(shape_of, tree)


@dataclasses.dataclass(frozen=True, eq=False)
class KeyedArgs:
    """Arguments whose shapes and dtypes are determined by a hashable key, so that they need not be inspected."""

    key: Any
    args: tuple[Any, ...]


def _flat_args(args: tuple[Any, ...]) -> list[Any]:
    """Returns the arguments one by one."""
    return [value for arg in args for value in (arg.args if isinstance(arg, KeyedArgs) else (arg,))]


class _Kind:
    """All of an argument that can change a program, hashed once."""

    __slots__ = ("_facts", "_hash")

    def __init__(self, facts: Any):
        self._facts, self._hash = facts, hash(facts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self._facts == other._facts


_kinds: dict[int, tuple[weakref.ref[Any], _Kind]] = {}  # of frozen dataclasses, by id: models come again and again
_packed: dict[int, tuple[weakref.ref[Any], Packed]] = {}


def packed(model: Any) -> Any:
    """Returns a model that a program made with `sharded` takes as it takes the model: flattened once, if it is a frozen
    dataclass, whose arrays then have to stay the same ones too; others, a caller's own, may change, and are returned.
    """
    cached = _packed.get(id(model))
    if cached is not None and cached[0]() is model:
        return cached[1]
    if not _is_frozen(model):
        return model
    name = id(model)
    try:
        cached = weakref.ref(model, lambda _: _packed.pop(name, None)), Packed.of(model)
    except TypeError:  # not everything can be referred to weakly
        return model
    _packed[name] = cached
    return cached[1]


def _is_frozen(value: Any) -> bool:
    """Returns whether it is a dataclass whose fields stay what they are."""
    settings = getattr(type(value), "__dataclass_params__", None)
    return settings is not None and settings.frozen


def _kind_of(arg: Any) -> _Kind:
    """Returns the structure of an argument, and shape, dtype and place of all in it; the key of `KeyedArgs`."""
    if isinstance(arg, KeyedArgs):
        return _Kind(arg.key)
    cached = _kinds.get(id(arg))
    if cached is not None and cached[0]() is arg:
        return cached[1]
    leaves, structure = jax.tree.flatten(arg)
    places, usual = [getattr(leaf, "sharding", None) for leaf in leaves], _usual_place()
    places = [None if place == usual else place for place in places]
    if any(isinstance(place, NamedSharding) for place in places):
        places = [placement(place) for place in places]
    shapes = [(leaf.shape, leaf.dtype, place) for leaf, place in zip(leaves, places, strict=True)]
    kind = _Kind((structure, tuple(shapes)))
    if len(leaves) >= MIN_CACHED_LEAVES and _is_frozen(arg):
        name = id(arg)
        with contextlib.suppress(TypeError):  # not everything can be referred to weakly
            _kinds[name] = weakref.ref(arg, lambda _: _kinds.pop(name, None)), kind
    return kind


@functools.cache
def _usual_place() -> Any:
    """Returns the sharding that a program gives to numpy arguments."""
    return jnp.zeros(()).sharding


def _make_room() -> None:
    """Drops the least recently used half of the programs if they take too many memory maps.

    On CPU a program's code lies in hundreds of memory maps. Linux lets a process have `vm.max_map_count` of them, and
    LLVM ends the process when it gets no more.
    """
    global _maps_kept
    max_maps, num_maps = (_count_in(*place) for place in MAPS)
    if (
        max_maps is None
        or num_maps is None
        or num_maps <= max(FULL_SHARE * max_maps, _maps_kept + NEW_SHARE * max_maps)
    ):
        return
    with _lock:
        _forget(-(-len(_programs) // 2))
    jax.clear_caches()
    _maps_kept = _count_in(*MAPS[1]) or 0  # many may belong to other libraries


def _forget(count: int) -> None:
    """Drops the programs that were used longest ago, under the lock; JAX has them until its caches are cleared."""
    for _ in range(min(count, len(_programs))):
        _programs.popitem(last=False)


def _count_in(path: str, count: Callable[[TextIO], int]) -> int | None:
    """Returns the number in a file of Linux; None on other systems."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return count(file)
    except (OSError, ValueError):
        return None


def compiled() -> int:
    """Returns how many programs have been compiled by now."""
    return _compiled


def seconds_since(moment: float) -> float:
    """Returns seconds since a moment of `time.perf_counter`, without the time that this thread spent compiling."""
    compiling = sum(end - max(start, moment) for start, end in _compile_times.compiling if end > moment)
    return time.perf_counter() - moment - compiling
