"""Structured output: finite automata that decide which tokens may follow, at every node of a tree."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from eagle_jax.decoding.tree import Tree
from eagle_jax.struct import pytree, static

# Added to the logits of tokens that an automaton does not allow: far below every other ban, which yields to it.
FORBIDDEN = -1e31


@pytree
class Automata:
    """The automata of a batch (b rows; a automata of at most s states, c token classes and m masks; w 32-bit words of
    a vocabulary mask).

    State 0 is the initial state; -1 follows a token that is not allowed. Tokens of a class have the same transitions in
    every state; states that allow the same tokens share a mask.

    Attributes:
        of_row: index of each row's automaton; -1 for none.
        token_class: class of each token.
        next: the state after a token of a class.
        mask_of_state: index of each state's mask.
        masks: bit i % 32 of word i // 32 is set if token i is allowed.
        in_use: known at compile time that some row has an automaton; if False, programs test that at run time.
    """

    of_row: Int[Array | np.ndarray, "b"]
    token_class: Int[Array | np.ndarray, "a v"]
    next: Int[Array | np.ndarray, "a s c"]
    mask_of_state: Int[Array | np.ndarray, "a s"]
    masks: UInt32[Array | np.ndarray, "a m w"]
    in_use: bool = static(default=False)

    def where_used(self, compute: Callable[[], Array], otherwise: Callable[[], Array]) -> Array:
        """Returns `compute()` if any row has an automaton, else `otherwise()`."""
        if self.in_use:
            return compute()
        return jax.lax.cond(jnp.any(jnp.asarray(self.of_row) >= 0), compute, otherwise)

    def after(self, states: Int[Array, "b n"], tokens: Int[Array, "b n"]) -> Int[Array, "b n"]:
        """Returns the states after one more token each; meaningless in rows without an automaton."""
        row = jnp.maximum(jnp.asarray(self.of_row), 0)[:, None]
        token_class = jnp.asarray(self.token_class)[row, jnp.maximum(tokens, 0)]
        following = jnp.asarray(self.next)[row, jnp.maximum(states, 0), token_class]
        return jnp.where(states < 0, -1, following)

    def at_nodes(self, root: Int[Array, "b"], tree: Tree, depth: int) -> Int[Array, "b n"]:
        """Returns the state after each node of a tree at most `depth` deep, given the state after its root."""
        is_root, parent = tree.parent < 0, jnp.maximum(tree.parent, 0)
        first = jnp.where(is_root, root[:, None], -1)

        def one_deeper(_: Array, states: Int[Array, "b n"]) -> Int[Array, "b n"]:
            return jnp.where(is_root, first, self.after(jnp.take_along_axis(states, parent, axis=1), tree.tokens))

        return jax.lax.fori_loop(0, depth, one_deeper, first)

    def bans(self, states: Int[Array, "b n"]) -> Float[Array, "b n v"]:
        """Returns `FORBIDDEN` for every token that must not follow, else 0."""
        of_row = jnp.asarray(self.of_row)[:, None]
        vocab_size = self.token_class.shape[1]

        def of_masks() -> Float[Array, "b n v"]:
            row = jnp.maximum(of_row, 0)
            words = jnp.asarray(self.masks)[row, jnp.asarray(self.mask_of_state)[row, jnp.maximum(states, 0)]]
            place = jnp.arange(32, dtype=jnp.uint32)[None, None, None]
            bits = (words[..., None] >> place) & 1
            allowed = bits.reshape(*states.shape, -1)[..., :vocab_size] > 0
            return jnp.where(allowed | (of_row < 0)[..., None], 0.0, FORBIDDEN)

        no_bans = jnp.zeros((*states.shape, vocab_size), jnp.float32)
        return self.where_used(of_masks, lambda: no_bans)


@pytree
class Guide:
    """The automata of a batch and their states, by which drafters leave out guesses that are not allowed.

    Attributes:
        automata: the batch's automata.
        root: the state after the root of each row's tree.
    """

    automata: Automata
    root: Int[Array, "b"]


def any_allowed(bans: Float[Array, "b n v"]) -> Bool[Array, "b n 1"]:
    """Returns whether the bans leave any token at each node."""
    return jnp.any(bans == 0, axis=-1, keepdims=True)
