"""REST (He et al. 2024, arXiv:2311.08252): what followed the end of the text in a store of other texts.

The store is a long text and its suffix array, both on the device. A step finds the places where the longest possible
end of the text stands in the store, by bisection, and makes a tree of what follows at some of them: the branches that
most of them share. Nothing is trained; the store is made once, of text like the answers.

Cost of one step: two bisections of log2(store) steps for every length of match, all at once, each step a gather of
`longest` tokens; then a comparison of all retrieved lines with each other. The store takes 8 bytes a token.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from eagle_jax.decoding.policy import keep_best
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import StatelessDrafter, View
from eagle_jax.drafters.trie import Trie
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static

SORTED_BY = 32  # places in the store are in the order of this many tokens from there


@pytree
class Datastore:
    """Texts to draft from.

    Attributes:
        tokens: all texts, one after the other, with -1 after each.
        order: places in `tokens`, in the order of the `SORTED_BY` tokens that begin there.
    """

    tokens: Int[Array, "m"]
    order: Int[Array, "m"]

    @staticmethod
    def of(texts: Sequence[Sequence[int]]) -> "Datastore":
        """Sorts in log2(SORTED_BY) rounds, each by twice as many tokens as the round before (Manber and Myers).

        Raises:
            ValueError: there is no token at all.
        """
        ended = [np.append(np.asarray(text, np.int32), np.int32(-1)) for text in texts if len(text)]
        tokens = np.concatenate(ended) if ended else np.zeros(0, np.int32)
        if not len(tokens):
            raise ValueError("a datastore of no text; give at least one that is not empty")
        rank, reach = tokens.astype(np.int64), 1
        while reach < SORTED_BY:
            behind = np.r_[rank[reach:], np.full(min(reach, len(rank)), -2)][: len(rank)]
            _, rank = np.unique(rank * (rank.max() + 3) + behind, return_inverse=True)
            reach *= 2
        order = np.argsort(rank, kind="stable").astype(np.int32)
        return Datastore(tokens=jnp.asarray(tokens, jnp.int32), order=jnp.asarray(order))


@pytree
class Rest(StatelessDrafter):
    """Drafts what follows the end of the text in a datastore.

    Attributes:
        store: texts of the target's tokens.
        longest, shortest: tokens at the end of the text that have to stand in the store.
        lines: number of places that are used, spread evenly over all that match.
        copied: tokens taken from each place.
        nodes: number of nodes of the tree, root included: the nodes shared by most lines.
    """

    store: Datastore
    longest: int = static(default=16)
    shortest: int = static(default=2)
    lines: int = static(default=32)
    copied: int = static(default=10)
    nodes: int = static(default=64)

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest <= SORTED_BY:
            raise ValueError(
                f"matches of {self.shortest} to {self.longest} tokens; expected 1 <= shortest <= longest <= {SORTED_BY}"
            )
        if not 2 <= self.nodes <= 1 + self.lines * self.copied:
            raise ValueError(
                f"a tree of {self.nodes} nodes from {self.lines} lines of {self.copied} tokens; expected 2 to "
                f"{1 + self.lines * self.copied}, root included"
            )

    @property
    def shape(self) -> TreeShape:
        return TreeShape(nodes=self.nodes, depth=self.copied)

    def propose(self, target: Target, state: tuple[()], view: View, mode: Sampling) -> tuple[Tree, tuple[()]]:
        with jax.named_scope("retrieve"):
            lines = jax.vmap(self._retrieve)(view.tokens, view.length)
            trie = Trie.of(lines, lines >= 0)
            share = jnp.log(trie.lines.astype(jnp.float32) / self.lines)  # log(0) is no candidate
            return keep_best(self.shape, view.root, share, trie.tokens, trie.parents), state

    def _retrieve(self, tokens: Int[Array, "t"], length: Int[Array, ""]) -> Int[Array, "s d"]:
        """Retrieves what follows the longest suffix of one text in the store; -1 where there is nothing."""
        sizes = jnp.arange(self.longest, self.shortest - 1, -1, dtype=jnp.int32)
        column = jnp.arange(self.longest, dtype=jnp.int32)
        ends = tokens[jnp.maximum(length - sizes[:, None] + 1 + column[None], 0)]  # [e longest], the first `size` count
        low, high = self._places(ends, sizes, False), self._places(ends, sizes, True)
        matches = jnp.where(sizes <= length + 1, high - low, 0)
        best = jnp.argmax(matches > 0)
        first, num_matches, size = low[best], matches[best], sizes[best]

        line = jnp.arange(self.lines, dtype=jnp.int32)
        evenly_spaced = line * jnp.minimum(num_matches, (2**31 - 1) // self.lines) // self.lines
        pick = first + jnp.where(num_matches > self.lines, evenly_spaced, line)
        begin = self.store.order[jnp.minimum(pick, len(self.store.order) - 1)] + size
        offset = begin[:, None] + jnp.arange(self.copied, dtype=jnp.int32)[None]
        follows = self.store.tokens.at[offset].get(mode="fill", fill_value=-1)
        return jnp.where((line < num_matches)[:, None], follows, -1)

    def _places(self, ends: Int[Array, "e n"], sizes: Int[Array, "e"], after: bool) -> Int[Array, "e"]:
        """Returns the first place in the store's order whose tokens are not below (after: above) each of `ends`."""
        count = len(self.store.order)
        column = jnp.arange(self.longest, dtype=jnp.int32)[None]
        low, high = jnp.zeros_like(sizes), jnp.full_like(sizes, count)

        def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            begin = self.store.order[jnp.minimum(middle, count - 1)]
            tokens_at = self.store.tokens.at[begin[:, None] + column].get(mode="fill", fill_value=-1)
            differs = (tokens_at != ends) & (column < sizes[:, None])
            at = jnp.argmax(differs, axis=1)[:, None]
            is_less = (jnp.take_along_axis(tokens_at, at, axis=1) < jnp.take_along_axis(ends, at, axis=1))[:, 0]
            goes_right = jnp.where(jnp.any(differs, axis=1), is_less, after) & (low < high)
            stays = low >= high
            return jnp.where(goes_right, middle + 1, low), jnp.where(goes_right | stays, high, middle)

        return jax.lax.fori_loop(0, count.bit_length(), halve, (low, high))[0]
