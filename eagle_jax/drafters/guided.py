"""Trees without guesses that structured output does not allow."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.automata import FORBIDDEN, any_allowed
from eagle_jax.decoding.policy import Carry, Extend, TreePolicy
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree, depth_below
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
    """Runs `policy.grow` below the roots, with scores only of the tokens that each row's automaton allows there.

    Args:
        drafted_part: picks the drafted tokens' values from values over the target's vocabulary.
        target_ids: maps ids of the draft vocabulary to the target's.
    """
    if view.guide is None:
        return policy.grow(view.root, first_scores, extend, carry, view.calibration)
    automata, root = view.guide.automata, view.guide.root[:, None]

    def masked(scores: Scores | Float[Array, "b n v"], states: Int[Array, "b n"]) -> Scores | Float[Array, "b n v"]:
        def of_allowed() -> Float[Array, "b n v"]:
            bans, logits = drafted_part(automata.bans(states)), _logits(scores)
            # nan: a row without any possible guess that is allowed has no distribution, and the tree ends there
            return jnp.where(any_allowed(jnp.where(logits > -jnp.inf, bans, FORBIDDEN)), logits + bans, jnp.nan)

        # the same program serves batches with penalties alone, which pay nothing for this
        logits = automata.where_used(of_allowed, lambda: _logits(scores))
        return Scores(logits) if isinstance(scores, Scores) else jax.nn.log_softmax(logits)

    def guided_extend(
        carry: tuple[Array, Carry], level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
    ) -> tuple[Scores | Float[Array, "b f v"], tuple[Array, Carry]]:
        states = automata.after(jnp.take_along_axis(carry[0], parent_row, axis=1), target_ids(tokens))
        scores, inner = extend(carry[1], level, tokens, parent_row)
        return masked(scores, states), (states, inner)

    below_root = masked(first_scores[:, None], root)[:, 0]
    return policy.grow(view.root, below_root, guided_extend, (root, carry), view.calibration)


def grow_by_depth(
    policy: TreePolicy,
    view: View,
    scores: Callable[[int], Scores],
    *,
    drafted_part: Callable[[Array], Array] = lambda values: values,
    target_ids: Callable[[Array], Array] = lambda tokens: tokens,
) -> Tree:
    """Runs `grow` for scores that depend only on a node's depth, as the scores of independent heads do.

    The best tokens of each depth are found once, and the tree grows over their ranks, not for each node over the whole
    vocabulary. An automaton forbids tokens by the node, though: then each row of a frontier has scores of all tokens,
    and a beam that is wide for the sake of exactness is narrowed.

    Args:
        scores: `scores(depth)`, `[b 1 v]`, of the tokens below nodes at `depth`; the policy is at least one deep.
    """
    if view.guide is not None:

        def of_tokens(
            carry: None, level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
        ) -> tuple[Float[Array, "b f v"], None]:
            below = scores(level).of_all()
            return jnp.broadcast_to(below, (*tokens.shape, below.shape[-1])), carry

        names = {"drafted_part": drafted_part, "target_ids": target_ids}
        return grow(policy.narrowed, view, scores(0)[:, 0], of_tokens, None, **names)

    by_depth = [scores(depth) for depth in range(policy.depth)]
    together = Scores(jnp.concatenate([each.logits for each in by_depth], axis=1))
    best, tokens = together.best(policy.max_children)

    def of_ranks(
        carry: None, level: int, ranks: Int[Array, "b f"], parent_row: Int[Array, "b f"]
    ) -> tuple[Float[Array, "b f k"], None]:
        return jnp.broadcast_to(best[:, level : level + 1], (*ranks.shape, policy.max_children)), carry

    return ranks_to_tokens(policy.grow(view.root, best[:, 0], of_ranks, None, view.calibration), tokens)


def ranks_to_tokens(tree: Tree, tokens: Int[Array, "b p c"]) -> Tree:
    """Replaces the ranks in a tree by the tokens that have them at each depth below the root."""
    place = jnp.maximum(depth_below(tree.ancestors) - 1, 0) * tokens.shape[2] + tree.tokens
    guesses = jnp.take_along_axis(tokens.reshape(len(tokens), -1), place[:, 1:], axis=1)
    return dataclasses.replace(tree, tokens=jnp.concatenate([tree.tokens[:, :1], guesses], axis=1))


def in_target_ids(tree: Tree, root: Int[Array, "b"], target_ids: Callable[[Array], Array]) -> Tree:
    """Replaces the draft ids in a tree by the target's; the root has one already."""
    return dataclasses.replace(tree, tokens=jnp.concatenate([root[:, None], target_ids(tree.tokens[:, 1:])], axis=1))


def _logits(scores: Scores | Float[Array, "b n v"]) -> Float[Array, "b n v"]:
    return scores.logits if isinstance(scores, Scores) else scores
