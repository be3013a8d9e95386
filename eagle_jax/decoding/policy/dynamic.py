"""EAGLE-2's tree: grow where the drafter is confident, keep the best nodes of all."""

import dataclasses
import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from eagle_jax.decoding.calibration import Calibration
from eagle_jax.decoding.policy.base import Carry, Extend, TreePolicy, best, keep_best, worth
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.sharding import by_row

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DynamicTree(TreePolicy):
    """Expand the best leaves level by level, then keep the best candidates of all levels (EAGLE-2, arXiv:2406.16858).

    Level 1 has the `top_k` best tokens below the root. Each of `depth_steps` expansions gives every node of the
    frontier its `top_k` best children, and the `beam` best of these are the next frontier. A node's score is the sum
    of log-probabilities on its path, calibrated where that is known. Of all candidates the `nodes - 1` best make the
    tree, in the order in which they were found.

    In EAGLE-2 a frontier is as wide as a node has children. With a beam of `nodes - 1` or more the tree is the exact
    best-first one: the `nodes - 1` likeliest paths of all, where each token is among the `top_k` best below its parent
    (JetSpec, arXiv:2606.18394). No level of that tree has more nodes, and those that it has are its level's best. A
    drafter that runs its network over each frontier pays for every row of it; one whose guesses do not depend on each
    other pays for scores alone.

    With `least` a tree ends where the drafter is unsure, and is as large as each step deserves: that pays where every
    node costs, on CPU cores. Nodes below paths of less than that probability are left out, and a path is followed as
    long as it would still be likely enough if its next guess were as sure as those so far: one of d guesses with the
    probability p while `p ** ((d + 1) / d) >= least`. Where no path of a batch is, the drafter does not run.

    Candidate f is one of the first top_k, children of the root, or in a block of top_k for each node of a frontier, in
    which element a * top_k + c is the c-th child of the a-th node of the frontier. Children never score above their
    parents and come after them, and ties go to the lower f, so the parent of every kept candidate is kept.

    Args:
        nodes: nodes of the tree, root included.
        depth_steps: expansions; the longest drafted path is one longer.
        top_k: children of a node.
        beam: nodes of a frontier, as far as there are so many candidates; None is `top_k`, as published (EAGLE-2).
        least: probability of a path, by its score, below which it is left out; 0 leaves out none.
        best_first: number the nodes by their scores instead, so that prefixes of a tree are the smaller trees.
    """

    depth_steps: int
    top_k: int
    beam: int | None = None
    least: float = dataclasses.field(default=0.0, kw_only=True)
    best_first: bool = dataclasses.field(default=False, kw_only=True, repr=False)

    def __post_init__(self):
        if self.nodes < 2:
            raise ValueError(f"a dynamic tree of {self.nodes} nodes; expected at least 2, the root and one guess")
        if self.top_k < 1:
            raise ValueError(f"a dynamic tree with top_k = {self.top_k}; expected at least 1 child below a node")
        if self.depth_steps < 0:
            raise ValueError(f"a dynamic tree with {self.depth_steps} expansions; expected 0 or more")
        if self.beam is not None and self.beam < 1:
            raise ValueError(f"a dynamic tree with beam = {self.beam}; expected a frontier of at least 1 node")
        if not 0 <= self.least < 1:
            raise ValueError(f"a tree of paths of at least {self.least}; expected a probability from 0 to below 1")
        candidates = num_candidates(self.depth_steps, self.top_k, self.beam)
        if self.nodes - 1 > candidates:
            beam = "" if self.beam is None else f" and beam {self.beam}"
            raise ValueError(
                f"a dynamic tree of {self.nodes} nodes, but {self.depth_steps} expansions with top_k {self.top_k}{beam}"
                f" find only {candidates}; ask for at most {candidates + 1} nodes, root included, or more depth or "
                "top_k"
            )
        object.__setattr__(self, "depth", self.depth_steps + 1)
        object.__setattr__(self, "frontiers", _frontiers(self.depth_steps, self.top_k, self.beam))
        object.__setattr__(self, "children", self.top_k)

    @staticmethod
    def chain(nodes: int, least: float = 0.0) -> "DynamicTree":
        """Makes the policy that drafts a chain of the best tokens: `nodes` at most, root included."""
        return DynamicTree(nodes, nodes - 2, 1, least=least)

    @property
    def is_chain(self) -> bool:
        return self.top_k == 1 and self.depth_steps == self.nodes - 2

    @property
    def narrowed(self) -> "DynamicTree":
        """Without a beam that is wider than published, if there are candidates enough for all nodes."""
        if (
            self.beam is None
            or self.beam <= self.top_k
            or self.nodes - 1 > num_candidates(self.depth_steps, self.top_k)
        ):
            return self
        return dataclasses.replace(self, beam=None)

    @property
    def is_exact(self) -> bool:
        """Whether these are the likeliest of all paths."""
        return (self.top_k if self.beam is None else self.beam) >= self.nodes - 1

    def grow(
        self,
        root_tokens: Int[Array, "b"],
        first_scores: Scores | Float[Array, "b v"],
        extend: Extend[Carry],
        carry: Carry,
        calibration: Calibration | None = None,
    ) -> tuple[Tree, Carry]:
        batch, k = len(root_tokens), self.top_k
        child_log_prob, token = best(first_scores, k)  # the frontier, cut to the beam below
        score = self._likely_enough(worth(child_log_prob, 0, calibration))
        index = jnp.broadcast_to(jnp.arange(k, dtype=jnp.int32), (batch, k))  # its candidate numbers
        scores, tokens, parents, child_log_probs = (
            [score],
            [token],
            [jnp.full_like(index, -1)],
            [child_log_prob],
        )  # the candidates
        parent_row, first = jnp.zeros_like(index), k  # first is the number of the next level's first candidate

        for level, width in enumerate(self.frontiers, start=1):
            score, token, index, parent_row = (part[:, :width] for part in (score, token, index, parent_row))
            score = jnp.where(score >= self._least_expanded(level), score, -jnp.inf) if self.least else score

            def children(
                level: int = level, token: Array = token, parent_row: Array = parent_row, carry: Carry = carry
            ) -> tuple[Array, Array, Carry]:
                below, more = extend(carry, level, token, parent_row)
                return *best(below, k), more

            with jax.named_scope(f"level_{level}"):
                child_log_prob, child_token, carry = self._if_any_expands(score, children)
                below_score = self._likely_enough(score[:, :, None] + worth(child_log_prob, level, calibration))
                scores.append(below_score.reshape(batch, width * k))
                child_log_probs.append(child_log_prob.reshape(batch, width * k))
                tokens.append(child_token.reshape(batch, width * k))
                parents.append(jnp.repeat(index, k, axis=1))

                if level < len(self.frontiers):
                    next_width = self.frontiers[level]
                    score, pick = by_row(lambda x, count=next_width: lax.top_k(x, count))(scores[-1])
                    token = jnp.take_along_axis(tokens[-1], pick, axis=1)
                    index = pick + first
                    parent_row = pick // k
                first += width * k

        all_candidates = (jnp.concatenate(part, axis=1) for part in (scores, tokens, parents, child_log_probs))
        return keep_best(self, root_tokens, *all_candidates, best_first=self.best_first), carry

    def _likely_enough(self, scores: Float[Array, "b *nodes"]) -> Float[Array, "b *nodes"]:
        """Returns the scores of paths, -inf of those that are left out."""
        return jnp.where(scores >= math.log(self.least), scores, -jnp.inf) if self.least else scores

    def _least_expanded(self, level: int) -> float:
        """Returns the least score at which a path of `level` guesses is expanded."""
        return math.log(self.least) * level / (level + 1)

    def _if_any_expands(self, scores: Float[Array, "b f"], extend: Callable[[], T]) -> T:
        """Runs `extend` below a frontier; returns zeros without running it where no path has a score."""
        if not self.least:
            return extend()
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(extend))
        return lax.cond(jnp.any(scores > -jnp.inf), extend, lambda: nothing)


def num_candidates(depth_steps: int, top_k: int, beam: int | None = None) -> int:
    """Returns the number of nodes, the root not included, of the largest tree of that depth and width."""
    return top_k * (1 + sum(_frontiers(depth_steps, top_k, beam)))


def _frontiers(depth_steps: int, top_k: int, beam: int | None) -> tuple[int, ...]:
    """Returns the number of rows of each frontier: as many of the level's candidates as a beam lets through."""
    sizes, candidates = [], top_k
    for _ in range(depth_steps):
        sizes.append(min(top_k if beam is None else beam, candidates))
        candidates = sizes[-1] * top_k
    return tuple(sizes)
