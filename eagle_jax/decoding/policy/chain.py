"""A chain that ends where the drafter is unsure."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from eagle_jax.decoding.calibration import Calibration
from eagle_jax.decoding.policy.base import Carry, Extend, TreePolicy, best, keep_best, worth
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree


@dataclasses.dataclass(frozen=True)
class SureChain(TreePolicy):
    """The best token, the best below it, and so on, as long as all of them together are likely enough.

    Where every node of a tree is paid for, on CPU cores, the drafter is not even asked for what would come next. The
    chain is the same as long as it is; a step costs less where it would not be accepted anyway.

    Args:
        nodes: at most so many, root included.
        least: probability of the path so far, by its score, below which nothing is drafted any more.
    """

    nodes: int
    least: float

    def __post_init__(self):
        if self.nodes < 2:
            raise ValueError(f"a chain of {self.nodes} nodes; expected at least 2, the root and one guess")
        if not 0 <= self.least < 1:
            raise ValueError(f"a chain that is to be sure to {self.least}; expected a probability from 0 to below 1")
        object.__setattr__(self, "depth", self.nodes - 1)
        object.__setattr__(self, "frontiers", (1,) * (self.nodes - 2))
        object.__setattr__(self, "children", 1)

    def grow(
        self,
        root_tokens: Int[Array, "b"],
        first_scores: Scores | Float[Array, "b v"],
        extend: Extend[Carry],
        carry: Carry,
        calibration: Calibration | None = None,
    ) -> tuple[Tree, Carry]:
        least = math.log(self.least) if self.least else -math.inf
        edge, token = best(first_scores, 1)
        score = worth(edge, 0, calibration)
        scores, tokens, edges = [score], [token], [edge]
        for level in range(1, self.depth):
            sure = score > least

            def further(level: int = level, token: Array = token, carry: Carry = carry) -> tuple[Array, Array, Carry]:
                with jax.named_scope(f"level_{level}"):
                    below, more = extend(carry, level, token, jnp.zeros_like(token))
                    edge, child = best(below, 1)
                return edge[:, :, 0], child[:, :, 0], more

            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(further))
            edge, token, carry = jax.lax.cond(jnp.any(sure), further, lambda nothing=nothing: nothing)
            score = jnp.where(sure, score + worth(edge, level, calibration), -jnp.inf)
            scores.append(score)
            tokens.append(token)
            edges.append(edge)
        parents = jnp.broadcast_to(jnp.arange(-1, self.depth - 1, dtype=jnp.int32), (len(root_tokens), self.depth))
        found = (jnp.concatenate(part, axis=1) for part in (scores, tokens, [parents], edges))
        return keep_best(self, root_tokens, *found), carry
