"""Trees without guesses that structured output does not allow."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.automata import any_allowed
from eagle_jax.decoding.policy import Carry, Extend, TreePolicy
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import View


def grow(
    policy: TreePolicy,
    view: View,
    first_scores: Scores | Float[Array, "b v"],
    extend: Extend[Carry],
    carry: Carry,
    *,
    drafted_part: Callable[[Array], Array] = lambda values: values,
    target_ids: Callable[[Array], Array] = lambda tokens: tokens,
) -> Tree:
    """`policy.grow` below the roots, with scores of the tokens alone that each row's automaton allows at the node.

    Args:
        drafted_part: of values over the target's vocabulary those of the tokens that the scores are of.
        target_ids: the target's ids of tokens that the scores are of.
    """
    if view.guide is None:
        return policy.grow(view.root, first_scores, extend, carry)[0]
    automata, root = view.guide.automata, view.guide.root[:, None]

    def masked(scores: Scores | Float[Array, "b n v"], states: Int[Array, "b n"]) -> Scores | Float[Array, "b n v"]:
        bans = drafted_part(automata.bans(states))
        # nan: a row without any guess that is allowed has no distribution, and the tree ends there
        logits = jnp.where(any_allowed(bans), _logits(scores) + bans, jnp.nan)
        return Scores(logits, scores.logit_scale) if isinstance(scores, Scores) else jax.nn.log_softmax(logits)

    def guided_extend(
        carry: tuple[Array, Carry], level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
    ) -> tuple[Scores | Float[Array, "b f v"], tuple[Array, Carry]]:
        states = automata.after(jnp.take_along_axis(carry[0], parent_row, axis=1), target_ids(tokens))
        scores, inner = extend(carry[1], level, tokens, parent_row)
        return masked(scores, states), (states, inner)

    below_root = masked(first_scores[:, None], root)[:, 0]
    return policy.grow(view.root, below_root, guided_extend, (root, carry))[0]


def _logits(scores: Scores | Float[Array, "b n v"]) -> Float[Array, "b n v"]:
    return scores.logits if isinstance(scores, Scores) else scores
