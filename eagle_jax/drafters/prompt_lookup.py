"""Prompt lookup (Saxena 2023; PLD in Spec-Bench): what followed the last few tokens at their previous occurrence.

Nothing is trained and nothing remembered: every step looks through the text so far. Pays where answers copy: in
summaries, answers from documents, edits of code.

Cost of one step: `longest` comparisons of the text with itself, in integers.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import StatelessDrafter, View
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class PromptLookup(StatelessDrafter):
    """Copies the `copied` tokens that followed the longest, and of those the latest, match of the text's end.

    The published method takes the earliest match, and none with fewer than `copied` tokens after it; here a match
    closer to the end than that is taken to repeat itself.

    Attributes:
        longest: most tokens compared (n of the n-gram).
        shortest: fewest tokens that have to agree.
        copied: length of the chain.
    """

    longest: int = static(default=3)
    shortest: int = static(default=1)
    copied: int = static(default=10)

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"matches of {self.shortest} to {self.longest} tokens; expected 1 <= shortest <= longest")
        if self.copied < 1:
            raise ValueError(f"copied={self.copied}; expected at least 1 token to copy")

    @property
    def shape(self) -> TreeShape:
        return TreeShape(nodes=self.copied + 1, depth=self.copied)

    def propose(self, target: Target, state: tuple[()], view: View, mode: Sampling) -> tuple[Tree, tuple[()]]:
        with jax.named_scope("lookup"):
            agreeing = suffix_matches(view.tokens, view.length, self.longest)
            longest_match, end = jnp.max(agreeing, axis=1), view.tokens.shape[1] - 1
            at = end - jnp.argmax((agreeing == longest_match[:, None])[:, ::-1], axis=1).astype(jnp.int32)  # the latest

            period = jnp.maximum(view.length - at, 1)
            offset = jnp.arange(self.copied, dtype=jnp.int32)[None] % period[:, None]
            copy = jnp.take_along_axis(view.tokens, jnp.minimum(at[:, None] + 1 + offset, end), axis=1)
            is_match = jnp.broadcast_to((longest_match >= self.shortest)[:, None], copy.shape)
        return Tree.chain(view.root, copy, is_match), state


def suffix_matches(tokens: Int[Array, "b t"], length: Int[Array, "b"], longest: int) -> Int[Array, "b t"]:
    """Returns how many tokens at and before each position match those at and before `length`, up to `longest`.

    Positions from `length` on have 0: the end of the text is no match for itself.
    """
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    going_on, agreeing = index < length[:, None], jnp.zeros_like(tokens)
    for back in range(longest):
        suffix = jnp.take_along_axis(tokens, jnp.maximum(length - back, 0)[:, None], axis=1)
        going_on = going_on & (index >= back) & (jnp.roll(tokens, back, axis=1) == suffix)
        agreeing = agreeing + going_on.astype(jnp.int32)
    return agreeing
