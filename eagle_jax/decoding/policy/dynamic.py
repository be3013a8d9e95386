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
from eagle_jax.decoding.policy.base import Carry, Extend, TreePolicy, best, calibrated, keep_best
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.sharding import by_row

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DynamicTree(TreePolicy):
    """Expand the best leaves level by level, then keep the best candidates of all levels (EAGLE-2, arXiv:2406.16858).

    Level 1 has the `top_k` best tokens below the root. Each of `depth_steps` expansions gives every node of the
    frontier its `top_k` best children, and the `beam` best of these are the next frontier. A node's score is the sum
    of log-probabilities on its path, calibrated if a calibration is given. The `nodes - 1` best of all
    candidates make the tree, in the order in which they were found.

    EAGLE-2's frontiers have `top_k` nodes. With a beam of `nodes - 1` or more the tree is the exact best-first one: the
    `nodes - 1` likeliest paths of all, where each token is among the `top_k` best below its parent (JetSpec,
    arXiv:2606.18394). No level of that tree has more than `nodes - 1` nodes, and these are the level's best, so the
    beam never drops one. A wide beam costs a drafter that runs its network on every frontier; a drafter that guesses
    all depths at once only pays for the scoring.

    With `min_probability` a tree ends where the drafter is unsure, so its size varies by step. That pays off if every
    node costs time, as on a CPU. A node whose path is less likely is left out. A path of d guesses with probability p
    is expanded only if it would still reach `min_probability` after one more guess of its average probability:
    `p ** ((d + 1) / d) >= min_probability`. If no path of the whole batch qualifies, the drafter is not run for that
    level.

    Candidates are numbered level by level: first the root's `top_k` children, then `width * top_k` for each frontier,
    of which number `a * top_k + c` is the c-th child of the frontier's a-th node. Children never score above their
    parents and come after them, and ties go to the lower number, so the parent of every kept candidate is kept.

    Args:
        nodes: nodes of the tree, root included.
        depth_steps: expansions; the longest drafted path is one longer.
        top_k: children of a node.
        beam: maximum nodes of a frontier; None is `top_k`, as in EAGLE-2.
        min_probability: nodes whose path is less probable than this are left out; 0 leaves out none.
        best_first: number nodes by descending score, not in the order found, so that every prefix is a smaller tree.
    """

    depth_steps: int
    top_k: int
    beam: int | None = None
    min_probability: float = dataclasses.field(default=0.0, kw_only=True)
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
        if not 0 <= self.min_probability < 1:
            raise ValueError(f"a dynamic tree with min_probability = {self.min_probability}; expected 0 to below 1")
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
        object.__setattr__(self, "max_children", self.top_k)

    @staticmethod
    def chain(nodes: int, min_probability: float = 0.0) -> "DynamicTree":
        """Returns the policy that drafts a chain of the best tokens, of at most `nodes` nodes, root included."""
        return DynamicTree(nodes, nodes - 2, 1, min_probability=min_probability)

    @property
    def is_chain(self) -> bool:
        return self.top_k == 1 and self.depth_steps == self.nodes - 2

    @property
    def narrowed(self) -> "DynamicTree":
        """The policy with EAGLE-2's beam if this one is wider and the narrower beam has enough candidates."""
        if (
            self.beam is None
            or self.beam <= self.top_k
            or self.nodes - 1 > num_candidates(self.depth_steps, self.top_k)
        ):
            return self
        return dataclasses.replace(self, beam=None)

    def grow(
        self,
        root_tokens: Int[Array, "b"],
        first_scores: Scores | Float[Array, "b v"],
        extend: Extend[Carry],
        carry: Carry,
        calibration: Calibration | None = None,
    ) -> Tree:
        batch, k = len(root_tokens), self.top_k
        child_log_prob, token = best(first_scores, k)  # the frontier, cut to the beam in the loop
        score = self._likely_enough(calibrated(child_log_prob, 0, calibration))
        index = jnp.broadcast_to(jnp.arange(k, dtype=jnp.int32), (batch, k))  # its candidate numbers
        candidates: list[tuple[Array, ...]] = [(score, token, jnp.full_like(index, -1), child_log_prob)]
        parent_row, level_offset = jnp.zeros_like(index), k

        for level, width in enumerate(self.frontiers, start=1):
            score, token, index, parent_row = (part[:, :width] for part in (score, token, index, parent_row))
            if self.min_probability:
                score = jnp.where(score >= self._min_expanded(level), score, -jnp.inf)

            def children(
                level: int = level, token: Array = token, parent_row: Array = parent_row, carry: Carry = carry
            ) -> tuple[Array, Array, Carry]:
                child_scores, next_carry = extend(carry, level, token, parent_row)
                return *best(child_scores, k), next_carry

            with jax.named_scope(f"level_{level}"):
                child_log_prob, child_token, carry = self._if_any_expands(score, children)
                below_score = self._likely_enough(score[:, :, None] + calibrated(child_log_prob, level, calibration))
                level_parts = below_score, child_token, jnp.repeat(index, k, axis=1), child_log_prob
                candidates.append(tuple(part.reshape(batch, width * k) for part in level_parts))

                if level < len(self.frontiers):
                    next_width = self.frontiers[level]
                    score, pick = by_row(lambda x, count=next_width: lax.top_k(x, count))(candidates[-1][0])
                    token = jnp.take_along_axis(candidates[-1][1], pick, axis=1)
                    index = pick + level_offset
                    parent_row = pick // k
                level_offset += width * k

        # scores, tokens, parents and log-probabilities, each of all levels
        parts = (jnp.concatenate(part, axis=1) for part in zip(*candidates, strict=True))
        return keep_best(self, root_tokens, *parts, best_first=self.best_first)

    def _likely_enough(self, scores: Float[Array, "b *nodes"]) -> Float[Array, "b *nodes"]:
        """Replaces scores below `min_probability` with -inf."""
        return jnp.where(scores >= math.log(self.min_probability), scores, -jnp.inf) if self.min_probability else scores

    def _min_expanded(self, level: int) -> float:
        """Returns the lowest score at which a path of `level` guesses is expanded."""
        return math.log(self.min_probability) * level / (level + 1)

    def _if_any_expands(self, scores: Float[Array, "b f"], extend: Callable[[], T]) -> T:
        """Runs `extend` below a frontier; returns zeros if all scores are -inf, since no later level expands either."""
        if not self.min_probability:
            return extend()
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(extend))
        return lax.cond(jnp.any(scores > -jnp.inf), extend, lambda: zeros)


def num_candidates(depth_steps: int, top_k: int, beam: int | None = None) -> int:
    """Returns the number of nodes, without the root, of the largest tree of this depth and width."""
    return top_k * (1 + sum(_frontiers(depth_steps, top_k, beam)))


def _frontiers(depth_steps: int, top_k: int, beam: int | None) -> tuple[int, ...]:
    """Returns the number of rows of each frontier: the level's candidates, at most a beam."""
    sizes, candidates = [], top_k
    for _ in range(depth_steps):
        sizes.append(min(top_k if beam is None else beam, candidates))
        candidates = sizes[-1] * top_k
    return tuple(sizes)
