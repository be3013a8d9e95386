"""Engines for the draft methods that users of the page choose, on the same weights."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from eagle_jax.api import METHODS, Engine, Model, method_of, tree_shape
from eagle_jax.serving.errors import ErrorResponse

Tree = str | tuple[int, ...]
MAX_ENGINES = 4
MAX_NODES, MAX_DEPTH = 256, 16  # of trees: every level adds to the compile time


class DraftMethod(NamedTuple):
    """The name of a drafter (`api.DRAFTERS`) and its tree, as in `generate` but hashable."""

    drafter: str
    tree: Tree


class Engines:
    """A cache of one engine per draft method, created on first use.

    Args:
        model: from `load`.
        max_engines: maximum number of engines, `first` included; the least recently used one is closed for a new one.
        room: `rows` and `max_tokens` of the engines that are created here.
        first: existing engines, which are never closed here.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_engines: int = MAX_ENGINES,
        first: Mapping[DraftMethod, Engine] | None = None,
        **room: Any,
    ):
        self.model, self._max_engines, self._room = model, max_engines, room
        self._first = {self._canonical(*method): engine for method, engine in (first or {}).items()}
        self._engines: dict[DraftMethod, Engine] = {}  # the least recently used comes first
        self._users: dict[DraftMethod, int] = {}
        self._creating = asyncio.Lock()

    def method(self, drafter: str, tree: Tree) -> DraftMethod:
        """Returns the canonical form of a draft method.

        Raises:
            ErrorResponse: the model does not support the method, or the tree is too large.
        """
        method = self._canonical(drafter, tree)
        if method in self:
            return method
        try:
            shape = tree_shape(self.model, method.drafter, tree_argument(method))
        except (ValueError, TypeError) as error:
            raise ErrorResponse(400, str(error)) from None
        if shape.nodes > MAX_NODES or shape.depth > MAX_DEPTH:
            size = f"a tree of {shape.nodes} nodes and depth {shape.depth}"
            raise ErrorResponse(400, f"{size}; expected at most {MAX_NODES} and {MAX_DEPTH}")
        return method

    def _canonical(self, drafter: str, tree: Tree) -> DraftMethod:
        """Resolves "auto", and drops the tree of a method that has none."""
        name = method_of(self.model, drafter)
        return DraftMethod(name, tree if name not in METHODS or METHODS[name].trees else "auto")

    def __contains__(self, method: DraftMethod) -> bool:
        return method in self._first or method in self._engines

    @contextlib.asynccontextmanager
    async def acquire(self, method: DraftMethod) -> AsyncIterator[Engine]:
        """Yields the engine of a method, which is not closed while the block runs.

        Raises:
            ErrorResponse: all engines are in use, or the memory does not suffice.
        """
        self._users[method] = self._users.get(method, 0) + 1
        try:
            # compilation goes on if the client disconnects; the next request finds the engine
            yield self._first[method] if method in self._first else await asyncio.shield(self._get_or_create(method))
        finally:
            self._users[method] -= 1
            if not self._users[method]:
                del self._users[method]

    async def _get_or_create(self, method: DraftMethod) -> Engine:
        async with self._creating:
            engine = self._engines.pop(method, None)
            if engine is not None and not engine.alive:  # it failed; a new one may not
                await asyncio.to_thread(engine.close)
                engine = None
            self._engines[method] = engine = engine or await self._create_within_limit(method)
            return engine

    async def _create_within_limit(self, method: DraftMethod) -> Engine:
        while len(self._first) + len(self._engines) >= self._max_engines:
            if not await self._close_idle_engine():
                raise ErrorResponse(429, "the maximum number of draft methods is in use; ask again later")
        try:
            return await asyncio.to_thread(self._create, method)
        except MemoryError:
            pass
        while await self._close_idle_engine():
            pass
        try:
            return await asyncio.to_thread(self._create, method)
        except MemoryError as error:
            raise ErrorResponse(503, f"{error}; choose another drafter, or a smaller tree") from None

    def _create(self, method: DraftMethod) -> Engine:
        """Compiles an engine, which takes a while. Raises MemoryError if the memory does not suffice."""
        drafting = {"drafter": method.drafter, "tree": tree_argument(method)}
        try:
            return Engine(self.model, steps=1, record=method.drafter != "none", **drafting, **self._room)
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        gc.collect()  # frees what was allocated before the memory ran out
        raise MemoryError(f"there is not enough memory for another engine with {method.drafter}")

    async def _close_idle_engine(self) -> bool:
        """Closes the least recently used idle engine; returns False if there is none."""
        for method in self._engines:
            if not self._users.get(method):
                await asyncio.to_thread(self._engines.pop(method).close)
                gc.collect()
                return True
        return False


def tree_argument(method: DraftMethod) -> Any:
    """Returns the tree as an argument of `generate`."""
    return method.tree if isinstance(method.tree, str) else list(method.tree)
