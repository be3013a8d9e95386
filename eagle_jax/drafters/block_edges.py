"""Trees from a DFlash block whose guesses depend on the token before: conditional edges instead of marginals.

One pass of the network has made the slots; a level of the tree costs the small heads of `models/edges.py` alone:

    marginals      a node's children are its slot's best tokens, the same below every node (`guided.grow_by_depth`)
    Markov head    the slot's logits and what the node's own token adds to all of them
    selector       the slot's `top_k` best tokens, in an order that the node's own token decides
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.policy import TreePolicy
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.drafters import guided
from eagle_jax.drafters.base import View
from eagle_jax.models.dflash import BlockOutput, DFlash

# scores(logits[b f d], depth, part) of tokens below nodes at `depth`; `part` picks the drafted tokens' values from
# values over the target's vocabulary.
ScoresOf = Callable[[Array, int, Callable[[Array], Array]], Scores]


def over_markov(head: DFlash, policy: TreePolicy, view: View, slots: BlockOutput, scores: ScoresOf) -> Tree:
    """Returns a tree in the draft vocabulary, by the Markov head."""

    def below(
        level: int, before: Int[Array, "b f"], state: Float[Array, "b f r"]
    ) -> tuple[Scores, Float[Array, "b f r"]]:
        logits, state = head.edge_logits(_slot(slots, level), before, state)
        return scores(logits, level, head.drafted_part), state

    def extend(
        above: Float[Array, "b _ r"], level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
    ) -> tuple[Scores, Float[Array, "b f r"]]:
        state = jnp.take_along_axis(above, parent_row[..., None], axis=1)
        return below(level, head.target_ids(tokens), state)

    root = view.root[:, None]
    first, state = below(0, root, head.path_state(root.shape, slots.out.dtype))
    names = {"drafted_part": head.drafted_part, "target_ids": head.target_ids}
    return guided.grow(policy, view, first[:, 0], extend, state, **names)


def over_candidates(head: DFlash, policy: TreePolicy, view: View, slots: BlockOutput, scores: ScoresOf) -> Tree:
    """Returns a tree in the draft vocabulary, of the slots' best tokens, by the selector.

    They are the best without noise at any temperature: with noise there are rare tokens among the best, which the
    selector has not learnt to compare.
    """
    logits = slots.logits[:, : policy.depth]
    if view.adjustment is not None:
        logits = view.adjustment.map(head.drafted_part).apply(logits)
    candidates = head.candidates(logits)

    def below(level: int, before: Int[Array, "b f"]) -> Scores:
        """Returns the logits of the slot's candidates."""
        slot_candidates = candidates[:, level : level + 1]

        def part(values: Float[Array, "b n v"]) -> Float[Array, "b n c"]:
            return jnp.take_along_axis(head.drafted_part(values), slot_candidates, axis=2)

        no_state = head.path_state(before.shape, slots.out.dtype)
        return scores(head.edge_logits(_slot(slots, level), before, no_state, slot_candidates)[0], level, part)

    def of_tokens(
        carry: None, level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
    ) -> tuple[Float[Array, "b f d"], None]:
        return everywhere(level, head.target_ids(tokens)), carry

    def everywhere(level: int, before: Int[Array, "b f"]) -> Float[Array, "b f d"]:
        """Returns `below` over all tokens; tokens that are no candidates are impossible."""
        none = jnp.full((*before.shape, head.draft_vocab_size), -jnp.inf)
        slot_candidates = jnp.broadcast_to(candidates[:, level : level + 1], (*before.shape, candidates.shape[2]))
        return jnp.put_along_axis(none, slot_candidates, below(level, before).of_all(), axis=2, inplace=False)

    if view.guide is not None:  # an automaton forbids tokens by the node, not ranks
        names = {"drafted_part": head.drafted_part, "target_ids": head.target_ids}
        return guided.grow(policy.narrowed, view, everywhere(0, view.root[:, None])[:, 0], of_tokens, None, **names)

    def of_ranks(
        carry: None, level: int, ranks: Int[Array, "b f"], parent_row: Int[Array, "b f"]
    ) -> tuple[Scores, None]:
        tokens = jnp.take_along_axis(candidates[:, level - 1], ranks, axis=1)
        return below(level, head.target_ids(tokens)), carry

    tree = policy.grow(view.root, below(0, view.root[:, None])[:, 0], of_ranks, None, view.calibration)
    return guided.ranks_to_tokens(tree, candidates)


def confident(head: DFlash, slots: BlockOutput, tree: Tree, min_confidence: float) -> Tree:
    """Drops nodes whose predicted acceptance probability is below `min_confidence`, and all nodes below them.

    A chain is cut before the first such node, as in DSpark.

    Args:
        tree: a tree of target ids.
    """
    before = jnp.take_along_axis(tree.tokens, jnp.maximum(tree.parent, 0), axis=1)
    slot = jnp.maximum(depth_below(tree.ancestors) - 1, 0)
    slot_outputs = BlockOutput(*(jnp.take_along_axis(part, slot[..., None], axis=1) for part in slots))
    is_sure = (head.confidence(slot_outputs, before) >= min_confidence) | (tree.parent < 0)
    is_path_sure = jnp.all(~tree.ancestors | is_sure[:, None], axis=2)
    return dataclasses.replace(tree, valid=tree.valid & is_path_sure)


def _slot(slots: BlockOutput, level: int) -> BlockOutput:
    """Returns the slot of the tokens below nodes at `level`, for every node of a frontier."""
    return BlockOutput(*(part[:, level : level + 1] for part in slots))
