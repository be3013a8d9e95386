"""Prefix reuse: a prompt that begins like an earlier one starts from what was read of that one.

Prompts are read in chunks of a fixed size. What one whole chunk adds to caches and drafter state is a block, and the
blocks of a prompt form a chain:

    prompt a    | chunk 0 | chunk 1 | chunk 2 | rest            a0 -> a1 -> a2
    prompt b    | chunk 0 | chunk 1 | other   | rest            a0 -> b1 -> b2

A block is identified by all tokens up to the one after its chunk, which a drafter reads with the chunk's last row, so
b1 differs from a1 although both hold chunk 1: the next token differs. A block comes from the program that would
read the chunk again, at the same position of a cache of the same size, so a prompt that starts from blocks has the same
state as one that is read whole, bit for bit. Answers make no blocks: forward passes over trees round differently.

If a target has recurrent layers, a block can hold their state too, which may be many times as large as its keys and
values. So only some blocks have it, and a prompt starts from the last block of its chain with a state:

    every k-th one          k chosen so that states take about as much memory as keys and values
    the last of a prompt    a conversation goes on from there
    where prompts part      the last block that a prompt shares with cached ones: read again, and kept with its state
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.loop.compiled import compiled
from eagle_jax.loop.state import PrefillState
from eagle_jax.models.cache import KVState, LayerState
from eagle_jax.requests.request import Request
from eagle_jax.sharding import Sharding, sharded
from eagle_jax.struct import pytree

PREFIX_CACHE_BYTES = 1 << 30  # default of an engine: 8,000 tokens of Llama-3.1-8B in bfloat16
PATIENCE = 32  # blocks that are kept before a budget that was cut is doubled


@pytree
class Block:
    """The state that one chunk of a prompt adds.

    Attributes:
        num_chunks: chunks of the prompt up to and including this one.
        kv: this chunk's part of every full-length KV cache.
        state: all other state as it is after the chunk; None where it is not kept.
    """

    num_chunks: Int[Array, ""]
    kv: tuple[KVState, ...]
    state: tuple[Array, ...] | None


class PrefixCache:
    """The blocks that were used last.

    Args:
        budget: maximum of their bytes, over all devices; 0 keeps none.

    Attributes:
        budget: as above; less for a while after memory was short.
        bytes: bytes of the blocks.
    """

    def __init__(self, budget: int):
        self.budget, self.bytes = budget, 0
        self._original_budget, self._largest = budget, 0  # what `budget` grows back to, and the largest block so far
        self._num_added = 0  # blocks since the budget changed
        self._blocks_until_growth = PATIENCE // 2  # the first shortage doubles it
        self._blocks: collections.OrderedDict[bytes, Block] = collections.OrderedDict()  # least recently used first

    def find(self, block_ids: Sequence[bytes]) -> list[Block]:
        """Returns the longest chain of blocks that a prompt with these blocks can start from."""
        chain = self._chain(block_ids)
        self._use(chain)
        blocks = [self._blocks[block_id] for block_id in chain]
        with_state = [number for number, block in enumerate(blocks, start=1) if block.state is not None]
        return blocks[: max(with_state, default=0)]

    def blocks_to_keep_with_state(self, block_ids: Sequence[bytes], interval: int) -> set[int]:
        """Returns the numbers, from 1, of the blocks of a prompt to keep with their state."""
        return {*range(interval, len(block_ids), interval), len(block_ids), len(self._chain(block_ids))}

    def keep(self, block_ids: Sequence[bytes], block: Block) -> None:
        """Adds the block of `block_ids[-1]`, after those of `block_ids[:-1]`; evicts least recently used blocks."""
        cached = self._blocks.get(block_ids[-1])
        if cached is None or (cached.state is None and block.state is not None):
            self._blocks[block_ids[-1]] = block
            self.bytes += _bytes_of(block) - (0 if cached is None else _bytes_of(cached))
            self._largest = max(self._largest, _bytes_of(block))
            self._grow_back()
        self._use(block_ids)
        while self.bytes > self.budget:
            _, evicted = self._blocks.popitem(last=False)
            self.bytes -= _bytes_of(evicted)

    def clear(self) -> None:
        """Frees all blocks."""
        self._blocks.clear()
        self.bytes = 0

    def recover(self, error: Exception) -> None:
        """Frees all blocks after a prompt could not be read.

        If the device ran out of memory, also halves the budget, but not below the largest block. The budget doubles
        again, up to the original, after every `PATIENCE` blocks kept; each further shortage doubles that number.
        """
        if "RESOURCE_EXHAUSTED" in str(error) and self.bytes:  # else they had no part in it
            self.budget = min(self.budget, max(self.bytes // 2, self._largest))
            self._num_added, self._blocks_until_growth = 0, 2 * self._blocks_until_growth
        self.clear()

    def _chain(self, block_ids: Sequence[bytes]) -> list[bytes]:
        """Returns the leading ids whose blocks are there."""
        return list(itertools.takewhile(self._blocks.__contains__, block_ids))

    def _grow_back(self) -> None:
        """Doubles a budget that was cut, up to what it was, if enough blocks were kept since."""
        self._num_added += 1
        if self.budget < self._original_budget and self._num_added >= self._blocks_until_growth:
            self.budget, self._num_added = min(2 * self.budget, self._original_budget), 0

    def _use(self, block_ids: Sequence[bytes]) -> None:
        """Marks a chain as used, its end first: a block whose predecessor is evicted could not be found."""
        for block_id in reversed(block_ids):
            if block_id in self._blocks:
                self._blocks.move_to_end(block_id)


def block_ids_of(request: Request, chunk: int, config: Any) -> list[bytes]:
    """Returns the id of each block that a prompt makes, in order: SHA-256 of the salt, the chunk size, what RoPE
    scaling depends on, and the tokens up to the one after the chunk.

    The chunk that holds the last token makes none, so at least one token is left to read.

    Args:
        chunk: tokens of a chunk.
        config: the target's.
    """
    tokens, block_ids = np.asarray(request.prompt, np.int32), []
    salt = request.cache_salt.encode(errors="surrogatepass")
    numbers = len(salt), chunk, _rope_length(config, len(tokens))
    digest = hashlib.sha256(np.array(numbers, np.int64).tobytes() + salt)
    for end in range(chunk, len(tokens), chunk):
        digest.update(tokens[end - chunk : end].tobytes())
        with_next = digest.copy()
        with_next.update(tokens[end : end + 1].tobytes())
        block_ids.append(with_next.digest())
    return block_ids


def take_block(
    progress: PrefillState, *, chunk: int, with_state: bool = True, sharding: Sharding | None = None
) -> Block:
    """Returns the block of the chunk that was read last, of the first row."""
    nodes, _ = _flattened(progress)
    start = (progress.num_chunks_read - 1) * chunk

    def cut(x: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x[:1], start, chunk, axis=2)

    kv = tuple(jax.tree.map(cut, node) for node in nodes if isinstance(node, KVState))
    others = tuple(node[:1] if node.ndim else node for node in nodes if not isinstance(node, KVState))
    return Block(num_chunks=progress.num_chunks_read, kv=kv, state=others if with_state else None)


def put_block(progress: PrefillState, block: Block, *, chunk: int, sharding: Sharding | None = None) -> PrefillState:
    """Writes a block into row 0 of `progress`, as if its chunk had just been read; the blocks before it must be there.

    A block without state only fills KV slots; a later block of the chain must bring the state.
    """
    nodes, structure = _flattened(progress)
    start = (block.num_chunks - 1) * chunk
    kv, state = iter(block.kv), None if block.state is None else iter(block.state)

    def put(old: Any) -> Any:
        if isinstance(old, KVState):
            at = 0, 0, start, 0
            return jax.tree.map(lambda x, rows: jax.lax.dynamic_update_slice(x, rows, at), old, next(kv))
        if state is None:
            return old
        new = next(state)
        return jax.lax.dynamic_update_slice_in_dim(old, new, 0, axis=0) if old.ndim else new

    filled = jax.tree.unflatten(structure, [put(node) for node in nodes])
    cache = dataclasses.replace(filled.cache, rope_length=progress.cache.rope_length)  # this prompt's, not the block's
    return dataclasses.replace(filled, cache=cache)


def state_interval(progress: PrefillState, chunk: int) -> int:
    """Returns k such that a recurrent state for every k blocks takes no more memory than K/V; 1 without states."""
    is_state = lambda node: isinstance(node, LayerState)  # noqa: E731
    layers = [node for node in jax.tree.leaves(progress, is_leaf=is_state) if is_state(node)]
    by_position = {id(node) for node in _flattened(progress)[0] if isinstance(node, KVState)}
    kv_bytes = sum(_row_bytes(layer) * chunk // layer.slots for layer in layers if id(layer) in by_position)
    state_bytes = sum(_row_bytes(layer) for layer in layers if not layer.by_position)
    return max(1, -(-state_bytes // max(kv_bytes, 1)))


compiled_take_block = functools.partial(compiled, sharded(take_block), static=("chunk", "with_state", "sharding"))
compiled_put_block = functools.partial(compiled, sharded(put_block), static=("chunk", "sharding"), donated="progress")


def _flattened(progress: PrefillState) -> tuple[list[Any], Any]:
    """Flattens a state into arrays and its structure; full-length KV caches stay whole, shorter ones are flattened."""
    return jax.tree.flatten(progress, lambda node: isinstance(node, KVState) and node.slots >= progress.cache.slots)


def _row_bytes(layer: LayerState) -> int:
    return sum(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(layer))


def _bytes_of(block: Block) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(block))


def _rope_length(config: Any, prompt_length: int) -> int:
    """Returns what the cached keys of a prompt depend on besides its tokens: with dynamic NTK scaling its length, where
    that exceeds the original context; with LongRoPE only whether it does; 0 for all other kinds of RoPE.
    """
    if not isinstance(config, LlamaConfig):
        return 0
    ropes = [config.rope_of(layer) for layer in range(config.num_hidden_layers)]
    scaled = [rope for rope in ropes if rope is not None and rope.kind in ("dynamic", "longrope")]
    originals = [rope.original_max_position_embeddings or 0 for rope in scaled]
    if all(rope.kind == "longrope" for rope in scaled):
        prompt_length = min(prompt_length, max(originals, default=0) + 1)
    return max(prompt_length, min(originals)) if originals else 0
