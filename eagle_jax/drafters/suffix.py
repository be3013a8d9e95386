"""Suffix decoding (Oliaro et al. 2024, arXiv:2411.04975): a tree of what followed the text's end wherever it stood.

Prompt lookup copies from one place, always as much. Here all places vote, and a long match is believed for longer:

    text       a b c d   a b c e   a b c d   a b c        the end "a b c" stands at three places
    tree       d (2 of 3 places) -- a (2/3)
               e (1 of 3 places) -- a (1/3)

For every length m of the end, the tree has what followed the latest `places` of those where the last m tokens stood, up
to `m * reach` tokens, as long as a share of at least `least` of these places goes that way. The length counts whose
tree has the largest sum of shares, which is the number of tokens that it expects to be accepted. Nothing is trained and
nothing remembered. The published method also keeps a tree of earlier answers, for which there is `rest`.

Cost of one step: `longest` comparisons of the text with itself and one search for the latest places for each of
`LENGTHS`, in integers.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.policy import keep_best
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import StatelessDrafter, View
from eagle_jax.drafters.prompt_lookup import suffix_matches
from eagle_jax.drafters.trie import Trie
from eagle_jax.models.target import Target
from eagle_jax.sharding import by_row
from eagle_jax.struct import pytree, static

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of the end of the text; the published method tries every one


@pytree
class SuffixDecoding(StatelessDrafter):
    """Drafts what followed earlier occurrences of the text's end.

    Attributes:
        nodes: nodes of the tree, root included.
        copied: maximum number of tokens taken from a place: the depth of the tree.
        places: number of places, the latest ones, that are used for each length of the end.
        reach: tokens taken for each token of the end that stands there.
        least: share of the places that have to go on alike; 0.1 is published.
    """

    nodes: int = static(default=32)
    copied: int = static(default=16)
    places: int = static(default=8)
    reach: float = static(default=1.0)
    least: float = static(default=0.1)

    def __post_init__(self):
        if self.copied < 1 or self.places < 1:
            raise ValueError(f"copied={self.copied} tokens from places={self.places}; expected at least 1 of both")
        if not 2 <= self.nodes <= 1 + self.places * self.copied:
            raise ValueError(
                f"a tree of {self.nodes} nodes from {self.places} places of {self.copied} tokens; expected 2 to "
                f"{1 + self.places * self.copied}, root included"
            )
        if self.reach <= 0 or not 0 <= self.least <= 1:
            raise ValueError(
                f"reach={self.reach} and least={self.least}; expected a positive number of tokens and a share from 0 "
                "to 1"
            )

    @property
    def shape(self) -> TreeShape:
        return TreeShape(nodes=self.nodes, depth=self.copied)

    def propose(self, target: Target, state: tuple[()], view: View, mode: Sampling) -> tuple[Tree, tuple[()]]:
        with jax.named_scope("suffix_matches"):
            agreeing = suffix_matches(view.tokens, view.length, max(LENGTHS))
            candidates = [self._candidates(view, agreeing, size) for size in LENGTHS]
        with jax.named_scope("suffix_tree"):
            best_shares = by_row(lambda rows: jax.lax.top_k(rows, self.nodes - 1)[0])
            expected = jnp.stack([jnp.sum(best_shares(shares), axis=1) for shares, _, _ in candidates])  # [e b]
            best = len(LENGTHS) - 1 - jnp.argmax(expected[::-1], axis=0)  # of equal ones the longest end
            row = jnp.arange(len(view.root))
            shares, tokens, parents = (jnp.stack(part)[best, row] for part in zip(*candidates, strict=True))
            return keep_best(self.shape, view.root, jnp.log(shares), tokens, parents), state

    def _candidates(
        self, view: View, agreeing: Int[Array, "b t"], size: int
    ) -> tuple[Float[Array, "b c"], Int[Array, "b c"], Int[Array, "b c"]]:
        """Returns the continuations after earlier occurrences of the last `size` tokens: shares, tokens and parents."""
        index = jnp.arange(agreeing.shape[1], dtype=jnp.float32)[None]  # of integers XLA sorts all to find the largest
        latest = by_row(lambda rows: jax.lax.top_k(rows, min(self.places, rows.shape[1]))[0])
        at = latest(jnp.where(agreeing >= size, index, -1.0)).astype(jnp.int32)  # [b s]
        is_place = at >= 0

        period = jnp.maximum(view.length[:, None] - at, 1)[..., None]
        offset = jnp.arange(self.copied, dtype=jnp.int32)[None, None] % period
        source = jnp.minimum(at[..., None] + 1 + offset, agreeing.shape[1] - 1)
        lines = jnp.take_along_axis(view.tokens[:, None], jnp.maximum(source, 0), axis=2)
        believed = jnp.arange(self.copied) < max(1, int(size * self.reach))
        trie = Trie.of(lines, is_place[..., None] & believed[None, None])
        share = trie.lines / jnp.maximum(jnp.sum(is_place, axis=1, keepdims=True), 1)
        return jnp.where(share >= self.least, share, 0.0), trie.tokens, trie.parents
