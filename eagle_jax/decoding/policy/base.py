"""The interface of tree policies."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from eagle_jax.decoding.calibration import Calibration
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.scores import best as best_tokens
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.sharding import by_row

Carry = TypeVar("Carry")

# extend(carry, level, tokens[b f], parent_row[b f]) -> (scores[b f v], carry)
Extend = Callable[[Carry, int, Array, Array], tuple[Scores | Array, Carry]]


@dataclasses.dataclass(frozen=True)
class TreePolicy(TreeShape, abc.ABC):
    """Grows a draft tree of a fixed shape out of a drafter's scores. Static: hashable, known when compiling.

    Attributes:
        frontiers: rows of each call of `extend`, level 1 first.
        max_children: most children that a node can have.
    """

    nodes: int
    frontiers: tuple[int, ...] = dataclasses.field(init=False, repr=False)
    depth: int = dataclasses.field(init=False, repr=False)
    max_children: int = dataclasses.field(init=False, repr=False)

    @property
    def width(self) -> int:
        """Most rows of one call of `extend`; 0 if it is never called."""
        return max(self.frontiers, default=0)

    @property
    def narrowed(self) -> "TreePolicy":
        """A policy of the same shape whose frontiers cost less, where a row of one is dear."""
        return self

    @abc.abstractmethod
    def grow(
        self,
        root_tokens: Int[Array, "b"],
        first_scores: Scores | Float[Array, "b v"],
        extend: Extend[Carry],
        carry: Carry,
        calibration: Calibration | None = None,
    ) -> Tree:
        """Drafts one tree per batch row.

        Scores are log-probabilities, at most 0 (what exceeds it is taken as 0). A score of -inf or nan makes its token
        impossible: the node is invalid, and so is everything below it.

        Args:
            root_tokens: tokens of the roots.
            first_scores: scores of every token below the root.
            extend: `extend(carry, level, tokens, parent_row) -> (scores, carry)` runs the drafter on a frontier: nodes
                at depth `level` = 1, 2, ..., with `tokens[b f]`, their parents' rows in the previous frontier
                `parent_row[b f]` (0 at level 1: the root), giving scores of every token below each, `[b f v]`.
            carry: the drafter's state, handed from call to call.
            calibration: maps scores to log-probabilities of acceptance, which paths are compared by; None: no change.
        """


def calibrated(
    edges: Float[Array, "b *nodes"], depth: int, calibration: Calibration | None
) -> Float[Array, "b *nodes"]:
    """Returns the increments to the scores of nodes at `depth` for the tokens below them."""
    return edges if calibration is None else calibration(edges, depth)


def best(scores: Scores | Float[Array, "*rows v"], count: int) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """Returns the `count` best scores of each row, best first, and their tokens; ties go to the lower token."""
    if count > scores.shape[-1]:
        raise ValueError(
            f"the tree asks for the {count} best tokens below a node, but the vocabulary has {scores.shape[-1]}; "
            "choose a narrower tree"
        )
    return best_tokens(scores, count)


@functools.lru_cache(maxsize=256)
def check_width(policy: TreePolicy, vocab_size: int) -> None:
    """Grows a tree of shapes alone: a policy that cannot over this vocabulary says so before anything runs."""

    def extend(carry: None, level: int, tokens: Array, parent_row: Array) -> tuple[Array, None]:
        return jnp.zeros((*tokens.shape, vocab_size)), carry

    jax.eval_shape(lambda: policy.grow(jnp.zeros(1, jnp.int32), jnp.zeros((1, vocab_size)), extend, None))


def keep_best(
    shape: TreeShape,
    root_tokens: Int[Array, "b"],
    scores: Float[Array, "b c"],
    tokens: Int[Array, "b c"],
    parents: Int[Array, "b c"],
    edges: Float[Array, "b c"] | None = None,
    *,
    best_first: bool = False,
) -> Tree:
    """Returns the tree of the `shape.nodes - 1` best of all candidates; of equal scores the earlier is better.

    Args:
        scores: score of each candidate, never above its parent's; -inf is no candidate.
        parents: candidate number of each candidate's parent, lower than its own; -1 is the root.
        edges: `Tree.edges` of the candidates.
        best_first: nodes are ordered by descending score, not as the candidates are.
    """

    def best_of(row: Array) -> Array:
        order = lax.top_k(row, shape.nodes - 1)[1]
        return order if best_first else jnp.sort(order, axis=1)

    if shape.nodes - 1 < scores.shape[1] or best_first:
        order = by_row(best_of)(scores)
        best_parents = jnp.take_along_axis(parents, order, axis=1)
        # place of each parent among the kept candidates, the root not counted
        place = jnp.arange(1, shape.nodes, dtype=jnp.int32)
        is_parent = order[:, None, :] == best_parents[:, :, None]
        parents = jnp.sum(jnp.where(is_parent, place[None, None], 0), axis=-1, dtype=jnp.int32) - 1
        tokens, scores = (jnp.take_along_axis(values, order, axis=1) for values in (tokens, scores))
        edges = None if edges is None else jnp.take_along_axis(edges, order, axis=1)
    root = jnp.zeros_like(root_tokens[:, None])
    scores = jnp.maximum(scores, -jnp.inf)  # nan is no score
    return Tree(
        tokens=jnp.concatenate([root_tokens[:, None], tokens], axis=1),
        parent=jnp.concatenate([root - 1, parents + 1], axis=1),
        valid=jnp.concatenate([root == 0, scores > -jnp.inf], axis=1),
        scores=jnp.concatenate([jnp.zeros_like(root, scores.dtype), scores], axis=1),
        edges=None if edges is None else jnp.concatenate([jnp.zeros_like(root, edges.dtype), edges], axis=1),
        height=shape.depth,
    )
