"""Engines for the ways to draft that readers of the page choose, on the same weights."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from eagle_jax.api import METHODS, Engine, Model, method_of, tree_shape
from eagle_jax.serving.errors import ErrorResponse

Tree = str | tuple[int, ...]
MAX_ENGINES = 4
MAX_NODES, MAX_DEPTH = 256, 16  # of trees; every level is a part of the program to compile


class DraftMethod(NamedTuple):
    """A drafter, a name of `api.DRAFTERS`, and its tree, as `generate` takes it but hashable."""

    drafter: str
    tree: Tree


class Engines:
    """An engine for each method to draft: made when it is first asked for, and kept as long as there is room.

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
        self._first = {self._usual(*method): engine for method, engine in (first or {}).items()}
        self._engines: dict[DraftMethod, Engine] = {}  # the one that was used last is the last
        self._users: dict[DraftMethod, int] = {}
        self._making = asyncio.Lock()

    def method(self, drafter: str, tree: Tree) -> DraftMethod:
        """Returns the one value that stands for a method in all its spellings.

        Raises:
            ErrorResponse: there is no such method for this model, or its trees are too large.
        """
        method = self._usual(drafter, tree)
        if method in self:
            return method
        try:
            shape = tree_shape(self.model, method.drafter, tree_argument(method))
        except (ValueError, TypeError) as error:
            raise ErrorResponse(400, str(error)) from None
        if shape.nodes > MAX_NODES or shape.depth > MAX_DEPTH:
            size = f"a tree of {shape.nodes} nodes and depth {shape.depth}"
            raise ErrorResponse(400, f"{size}; expected {MAX_NODES} and {MAX_DEPTH} at most")
        return method

    def _usual(self, drafter: str, tree: Tree) -> DraftMethod:
        """ "auto" is what the model has, and not every method has trees."""
        name = method_of(self.model, drafter)
        return DraftMethod(name, tree if name not in METHODS or METHODS[name].trees else "auto")

    def __contains__(self, method: DraftMethod) -> bool:
        return method in self._first or method in self._engines

    @contextlib.asynccontextmanager
    async def using(self, method: DraftMethod) -> AsyncIterator[Engine]:
        """Yields the engine of one method, which is not closed while the block runs.

        Raises:
            ErrorResponse: there is no room for another engine.
        """
        self._users[method] = self._users.get(method, 0) + 1
        try:
            # a reader who leaves meanwhile does not stop the compiler; the engine is there for the next
            yield self._first[method] if method in self._first else await asyncio.shield(self._one(method))
        finally:
            self._users[method] -= 1
            if not self._users[method]:
                del self._users[method]

    async def _one(self, method: DraftMethod) -> Engine:
        async with self._making:
            engine = self._engines.pop(method, None)
            if engine is not None and not engine.alive:  # it broke down; another one may do better
                await asyncio.to_thread(engine.close)
                engine = None
            self._engines[method] = engine = engine or await self._new(method)
            return engine

    async def _new(self, method: DraftMethod) -> Engine:
        while len(self._first) + len(self._engines) >= self._max_engines:
            if not await self._make_room():
                raise ErrorResponse(429, "as many ways to draft are in use as fit at a time; ask again later")
        try:
            return await asyncio.to_thread(self._make, method)
        except MemoryError:
            pass
        while await self._make_room():
            pass
        try:
            return await asyncio.to_thread(self._make, method)
        except MemoryError as error:
            raise ErrorResponse(503, f"{error}; choose another drafter, or a smaller tree") from None

    def _make(self, method: DraftMethod) -> Engine:
        """Compiles an engine, which takes a while.

        Raises:
            MemoryError: it does not fit into memory with the others.
        """
        drafting = {"drafter": method.drafter, "tree": tree_argument(method)}
        try:
            return Engine(self.model, steps=1, record=method.drafter != "none", **drafting, **self._room)
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        gc.collect()  # what was allocated before the memory ran out
        raise MemoryError(f"the memory does not hold another engine for {method.drafter}")

    async def _make_room(self) -> bool:
        """Closes the engine that was used longest ago and is not in use; returns False if there is none."""
        for method in self._engines:
            if not self._users.get(method):
                await asyncio.to_thread(self._engines.pop(method).close)
                gc.collect()
                return True
        return False


def tree_argument(method: DraftMethod) -> Any:
    """Returns the tree as the api takes it."""
    return method.tree if isinstance(method.tree, str) else list(method.tree)
