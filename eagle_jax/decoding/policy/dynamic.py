"""EAGLE-2's tree: grow where the drafter is confident, keep the best nodes of all."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from eagle_jax.decoding.policy.base import Carry, Extend, TreePolicy, best, keep_best
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.sharding import by_row


@dataclasses.dataclass(frozen=True)
class DynamicTree(TreePolicy):
    """Expand the best leaves level by level, then keep the best candidates of all levels (EAGLE-2, arXiv:2406.16858).

    Level 1 has the `top_k` best tokens below the root. Each of `depth_steps` expansions gives every node of the
    frontier its `top_k` best children, and the `top_k` best of these are the next frontier. A node's score is the sum
    of log-probabilities on its path. Of all candidates the `nodes - 1` best make the tree, in the order in which they
    were found.

    Candidate f is one of the first top_k, children of the root, or in a block of top_k x top_k for each expansion, in
    which element a * top_k + c is the c-th child of the a-th node of the frontier. Children never score above their
    parents and come after them, and ties go to the lower f, so the parent of every kept candidate is kept.

    Args:
        nodes: nodes of the tree, root included.
        depth_steps: expansions; the longest drafted path is one longer.
        top_k: children of a node, and nodes of a frontier.
        best_first: number the nodes by their scores instead, so that a tree tells which smaller ones it contains.
    """

    depth_steps: int
    top_k: int
    best_first: bool = dataclasses.field(default=False, kw_only=True, repr=False)

    def __post_init__(self):
        if self.nodes < 2:
            raise ValueError(f"a dynamic tree of {self.nodes} nodes; expected at least 2, the root and one guess")
        if self.top_k < 1:
            raise ValueError(f"a dynamic tree with top_k = {self.top_k}; expected at least 1 child below a node")
        if self.depth_steps < 0:
            raise ValueError(f"a dynamic tree with {self.depth_steps} expansions; expected 0 or more")
        candidates = self.top_k + self.depth_steps * self.top_k**2
        if self.nodes - 1 > candidates:
            raise ValueError(
                f"a dynamic tree of {self.nodes} nodes, but {self.depth_steps} expansions with top_k {self.top_k} find"
                f" only {candidates}; ask for at most {candidates + 1} nodes, root included, or more depth or top_k"
            )
        object.__setattr__(self, "depth", self.depth_steps + 1)
        object.__setattr__(self, "frontiers", (self.top_k,) * self.depth_steps)
        object.__setattr__(self, "children", self.top_k)

    def grow(
        self,
        root_tokens: Int[Array, "b"],
        first_scores: Scores | Float[Array, "b v"],
        extend: Extend[Carry],
        carry: Carry,
    ) -> tuple[Tree, Carry]:
        batch, k = len(root_tokens), self.top_k
        score, token = best(first_scores, k)  # the frontier
        index = jnp.broadcast_to(jnp.arange(k, dtype=jnp.int32), (batch, k))  # its candidate numbers
        parent_row = jnp.zeros_like(index)
        scores, tokens, parents = [score], [token], [jnp.full_like(index, -1)]  # the candidates

        for level in range(1, self.depth_steps + 1):
            with jax.named_scope(f"level_{level}"):
                below, carry = extend(carry, level, token, parent_row)
                child_score, child_token = best(below, k)
                scores.append((score[:, :, None] + child_score).reshape(batch, k * k))
                tokens.append(child_token.reshape(batch, k * k))
                parents.append(jnp.repeat(index, k, axis=1))

                score, pick = by_row(lambda x: lax.top_k(x, k))(scores[-1])
                token = jnp.take_along_axis(tokens[-1], pick, axis=1)
                index = pick + (k + (level - 1) * k * k)
                parent_row = pick // k

        all_candidates = (jnp.concatenate(part, axis=1) for part in (scores, tokens, parents))
        return keep_best(self, root_tokens, *all_candidates, best_first=self.best_first), carry
