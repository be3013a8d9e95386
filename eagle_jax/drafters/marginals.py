"""Grows trees from heads that draft all depths at once, so that no guess depends on its parent."""

import jax
from jaxtyping import Array, Float

from eagle_jax.decoding.policy import TreePolicy
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters import guided, ranking
from eagle_jax.drafters.base import View
from eagle_jax.models.any_head import AnyHead


def grow(
    head: AnyHead, policy: TreePolicy, view: View, logits: Float[Array, "b p d"], mode: Sampling, coupled: bool
) -> Tree:
    """Returns the tree in which all nodes of one depth have the same candidates.

    Args:
        head: whose draft vocabulary `logits` are of.
        logits: logits of the tokens at depths 1 to p, the policy's depth.
        coupled: at temperature > 0, rank guesses with the noise that the target will draw with.
    """

    def scores(depth: int) -> Scores:
        part = logits[:, depth : depth + 1]
        return ranking.scores(part, depth, view, mode, coupled, drafted_part=head.drafted_part)

    with jax.named_scope("draft_tree"):
        names = {"drafted_part": head.drafted_part, "target_ids": head.target_ids}
        tree = guided.grow_by_depth(policy, view, scores, **names)
        return guided.in_target_ids(tree, view.root, head.target_ids)
