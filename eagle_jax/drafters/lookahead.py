"""Lookahead decoding (Fu et al. 2024, arXiv:2402.02057): the target makes new guesses while it verifies old ones.

A window of `window` columns and `ngram - 1` rows slides ahead of the text. Row 0 guesses the tokens right below the
root, and every row below it is one Jacobi iteration newer and one position later, so that a column read downwards is an
n-gram that the target itself has written:

    columns      0        1        2            positions after the root

    row 0        1        2        3            a chain below the root
    row 1        2        3        4            each below its column's token of row 0
    row 2        3        4        5            each below row 1's
    drawn        4        5        6            what the target draws below row 2

The window is part of the tree, so one target pass both advances it and checks the guesses. Column n-grams go to a pool,
indexed by their first token; those that begin with the root are the guesses. Nothing is trained. At temperature > 0 the
iteration runs with the noise of its positions, and its fixed point is the very text that will be drawn.

Cost of one step: (window + guesses) x (ngram - 1) nodes in the target's pass, most of which cannot be accepted: it
pays only if rows are nearly free. The pool holds vocabulary x guesses x (ngram - 1) tokens for every row of a batch.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import CommittedRows, Drafter, Verification, View
from eagle_jax.drafters.trie import Trie, graft
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class LookaheadState:
    """The window of the Jacobi iteration, and a pool: for each token g n-grams, each with the k tokens that follow it.

    Attributes:
        window: the guesses ahead of the text, row by row.
        pool: the tokens after each token in its n-grams; -1 for none.
        written: number of n-grams written for each token; the oldest is overwritten.
    """

    window: Int[Array, "b c w"]
    pool: Int[Array, "b v g k"]
    written: Int[Array, "b v"]


@pytree
class Lookahead(Drafter):
    """Drafts with n-grams of the target's own Jacobi iteration.

    Attributes:
        window: columns (published W).
        ngram: tokens of an n-gram, its key included (published N, the level).
        guesses: n-grams kept for a token, all of which are guessed (published G).
    """

    window: int = static(default=7)
    ngram: int = static(default=5)
    guesses: int = static(default=7)

    taps = ()

    def __post_init__(self):
        if self.window < 1 or self.guesses < 1 or self.ngram < 2:
            raise ValueError(
                f"window={self.window}, ngram={self.ngram}, guesses={self.guesses}; expected at least 1, 2 and 1"
            )

    @property
    def rows(self) -> int:
        """Rows of the window, and tokens of an n-gram after its key."""
        return self.ngram - 1

    @property
    def shape(self) -> TreeShape:
        nodes = 1 + (self.window + self.guesses) * self.rows
        return TreeShape(nodes=nodes, depth=self.window + self.rows - 1)

    def init(self, target: Target, batch: int, slots: int) -> LookaheadState:
        size = target.config.vocab_size
        return LookaheadState(
            window=jnp.zeros((batch, self.rows, self.window), jnp.int32),
            pool=jnp.full((batch, size, self.guesses, self.rows), -1, jnp.int32),
            written=jnp.zeros((batch, size), jnp.int32),
        )

    def observe(self, target: Target, state: LookaheadState, observed: CommittedRows) -> LookaheadState:
        with jax.named_scope("lookahead"):
            if observed.checked is None:
                return self._read(state, observed)
            return self._iterate(state, observed.checked, observed.count)

    def _read(self, state: LookaheadState, observed: CommittedRows) -> LookaheadState:
        """Adds the n-grams within a chunk of text; those that cross chunks are skipped.

        The window is initialized with tokens from all over the prompt (every 7th, wrapping around), so that it does not
        start with one repeated token. A chunk of one token, such as the last of a prompt, does not change the window.
        """
        batch, rows = observed.tokens.shape
        index = jnp.arange(rows, dtype=jnp.int32)[None]
        ahead = jnp.minimum(index[:, :, None] + jnp.arange(self.rows, dtype=jnp.int32)[None, None], rows - 1)
        ngrams = jnp.take_along_axis(observed.following[:, :, None], ahead.reshape(1, -1, 1), axis=1)
        state = _remember(
            state,
            jnp.maximum(observed.tokens, 0),
            ngrams.reshape(batch, rows, self.rows),
            index + self.rows <= observed.count[:, None],
        )
        picks = jnp.arange(self.rows * self.window, dtype=jnp.int32)[None] * 7 % jnp.maximum(observed.count, 1)[:, None]
        window = jnp.take_along_axis(observed.tokens, picks, axis=1).reshape(state.window.shape)
        fills_window = (observed.count > 1)[:, None, None]
        return LookaheadState(
            window=jnp.where(fills_window, jnp.maximum(window, 0), state.window), pool=state.pool, written=state.written
        )

    def _iterate(self, state: LookaheadState, checked: Verification, count: Int[Array, "b"]) -> LookaheadState:
        """Appends the target's draw to every column, collects the n-grams, and drops the oldest row."""
        first = 1 + self.window * (self.rows - 1)  # the nodes of the last row
        drawn = checked.draws[:, first : first + self.window]
        columns = jnp.concatenate([state.window, drawn[:, None]], axis=1)
        active = jnp.broadcast_to((count > 0)[:, None], drawn.shape)
        state = _remember(state, columns[:, 0], columns[:, 1:].swapaxes(1, 2), active)
        # with one accepted token row 1 becomes row 0 below the new root; each further one shifts the columns by one
        skip = (jnp.arange(self.window, dtype=jnp.int32)[None] + jnp.maximum(count - 1, 0)[:, None]) % self.window
        moved = jnp.take_along_axis(columns[:, 1:], jnp.broadcast_to(skip[:, None], state.window.shape), axis=2)
        window = jnp.where((count > 0)[:, None, None], moved, state.window)
        return LookaheadState(window=window, pool=state.pool, written=state.written)

    def propose(self, target: Target, state: LookaheadState, view: View, mode: Sampling) -> tuple[Tree, LookaheadState]:
        with jax.named_scope("lookahead"):
            root = view.root
            stored = jnp.take_along_axis(state.pool, root[:, None, None, None], axis=1)[:, 0]
            guesses = Trie.of(stored, stored >= 0).tree(root, self.rows)
            return graft(self._window(root, state.window), guesses)[0], state

    def _window(self, root: Int[Array, "b"], window: Int[Array, "b c w"]) -> Tree:
        batch, rows, columns = window.shape
        chain = jnp.arange(columns, dtype=jnp.int32)  # row 0: a chain below the root
        # other rows: each node below its column in the row before
        below = jnp.arange(1, 1 + (rows - 1) * columns, dtype=jnp.int32)
        parent = jnp.concatenate([jnp.full(1, -1, jnp.int32), chain, below])
        nodes = parent.shape[0]
        return Tree(
            tokens=jnp.concatenate([root[:, None], window.reshape(batch, -1)], axis=1),
            parent=jnp.broadcast_to(parent[None], (batch, nodes)),
            valid=jnp.ones((batch, nodes), bool),
            height=self.shape.depth,
        )


def _remember(
    state: LookaheadState, keys: Int[Array, "b r"], ngrams: Int[Array, "b r k"], is_valid: Bool[Array, "b r"]
) -> LookaheadState:
    """Adds the valid n-grams that the pool lacks; each replaces the oldest one of its key."""
    guesses = state.pool.shape[2]
    earlier = jnp.tril(jnp.ones((keys.shape[1],) * 2, bool), -1)[None]
    same_key = keys[:, :, None] == keys[:, None, :]
    same = same_key & jnp.all(ngrams[:, :, None] == ngrams[:, None, :], axis=3)
    # new: valid, not in the pool, and not equal to an earlier new one
    stored = jnp.take_along_axis(state.pool, keys[:, :, None, None], axis=1)
    new = is_valid & ~jnp.any(jnp.all(stored == ngrams[:, :, None], axis=3), axis=2)
    new &= ~jnp.any(same & earlier & new[:, None, :], axis=2)

    # the entries of a key are a ring buffer: new n-grams take the next ones in turn
    others = same_key & new[:, None, :]
    num_earlier = jnp.sum(others & earlier, axis=2, dtype=jnp.int32)
    num_later = jnp.sum(others & earlier.swapaxes(1, 2), axis=2, dtype=jnp.int32)
    slot = (jnp.take_along_axis(state.written, keys, axis=1) + num_earlier) % guesses
    # an n-gram that later ones of this call would overwrite gets an index out of range, which the scatter drops: the
    # order of two writes to one entry is undefined
    at = jnp.where(new & (num_later < guesses), keys, state.pool.shape[1])

    def put(pool: Array, at: Array, slot: Array, rows: Array) -> Array:
        return pool.at[at, slot].set(rows, mode="drop")

    def count(written: Array, keys: Array, new: Array) -> Array:
        return written.at[keys].add(new.astype(jnp.int32))

    return LookaheadState(
        window=state.window,
        pool=jax.vmap(put)(state.pool, at, slot, ngrams),
        written=jax.vmap(count)(state.written, keys, new),
    )
