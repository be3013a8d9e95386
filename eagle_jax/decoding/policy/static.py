"""Trees whose shape is given beforehand: EAGLE-1's tree, chains, plain decoding."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from eagle_jax.decoding.calibration import Calibration
from eagle_jax.decoding.policy.base import Carry, Extend, TreePolicy, best, calibrated
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree

# children(tokens[b f], depth, parent_row[b f], count, carry) -> (scores[b f count], tokens[b f count], carry)
Children = Callable[[Array, int, Array, int, Carry], tuple[Array, Array, Carry]]


@dataclasses.dataclass(frozen=True)
class StaticTree(TreePolicy):
    """The same shape in every step: the i-th child of a node, in index order, is the i-th best token below it.

    Args:
        parents: parent of each node; `parents[0] == -1` is the root, and every other node comes after its parent.
    """

    nodes: int = dataclasses.field(init=False, repr=False)
    parents: tuple[int, ...]

    def __post_init__(self):
        check(self.parents)
        levels = _levels(self.parents)
        object.__setattr__(self, "nodes", len(self.parents))
        object.__setattr__(self, "depth", len(levels))
        object.__setattr__(self, "frontiers", tuple(len(level.frontier) for level in levels[:-1]))
        object.__setattr__(self, "max_children", max((1 + int(level.rank.max()) for level in levels), default=0))

    def grow(
        self,
        root_tokens: Int[Array, "b"],
        first_scores: Scores | Float[Array, "b v"],
        extend: Extend[Carry],
        carry: Carry,
        calibration: Calibration | None = None,
    ) -> Tree:
        def children(
            tokens: Int[Array, "b f"], depth: int, parent_row: Int[Array, "b f"], count: int, carry: Carry
        ) -> tuple[Array, Array, Carry]:
            if depth == 0:
                return *best(first_scores[:, None], count), carry
            with jax.named_scope(f"level_{depth}"):
                scores, carry = extend(carry, depth, tokens, parent_row)
                return *best(scores, count), carry

        return self.fill(root_tokens, children, carry, calibration)

    def fill(
        self,
        root_tokens: Int[Array, "b"],
        children: Children[Carry],
        carry: Carry,
        calibration: Calibration | None = None,
    ) -> Tree:
        """Returns the tree whose tokens `children` names, level by level.

        Args:
            children: `children(tokens, depth, parent_row, count, carry) -> (scores, tokens, carry)` gives `count`
                tokens or more below every node of a frontier, best first, `[b f count]`, and their scores; -inf is no
                token. The frontier is the nodes at `depth` = 0, 1, ... that have children, with `tokens[b f]` and their
                parents' rows in the frontier before.
        """
        tokens, valid = [root_tokens[:, None]], [jnp.ones_like(root_tokens, bool)[:, None]]
        paths = [jnp.zeros(tokens[0].shape, jnp.float32)]
        edges = [paths[0]]
        levels = _levels(self.parents)
        frontier, parent_row = root_tokens[:, None], jnp.zeros_like(root_tokens[:, None])
        for depth, level in enumerate(levels, start=1):
            scores, child_tokens, carry = children(frontier, depth - 1, parent_row, 1 + int(level.rank.max()), carry)
            tokens.append(child_tokens[:, level.row, level.rank])
            edge = scores[:, level.row, level.rank].astype(jnp.float32)
            edges.append(edge)
            valid.append((edge > -jnp.inf) & valid[-1][:, level.parent])
            paths.append(paths[-1][:, level.parent] + calibrated(edge, depth - 1, calibration))
            frontier = tokens[-1][:, level.frontier]
            parent_row = jnp.broadcast_to(jnp.asarray(level.row[level.frontier], jnp.int32), frontier.shape)

        by_level = [0, *(node for level in levels for node in level.nodes)]
        order = np.argsort(by_level)
        parent = jnp.asarray(self.parents, jnp.int32)
        return Tree(
            tokens=jnp.concatenate(tokens, axis=1)[:, order],
            parent=jnp.broadcast_to(parent, (len(root_tokens), self.nodes)),
            valid=jnp.concatenate(valid, axis=1)[:, order],
            scores=jnp.concatenate(paths, axis=1)[:, order],
            edges=jnp.concatenate(edges, axis=1)[:, order],
            height=self.depth,
        )


class _Level(NamedTuple):
    """The nodes of one depth: where each finds its parent and its token.

    Attributes:
        nodes: their indices in the tree, ascending.
        parent: each node's parent, as a column of the level above.
        row: each node's parent, as a row of the frontier above.
        rank: index among siblings.
        frontier: columns of the nodes that have children themselves.
    """

    nodes: list[int]
    parent: np.ndarray
    row: np.ndarray
    rank: np.ndarray
    frontier: np.ndarray


def _levels(parents: tuple[int, ...]) -> list[_Level]:
    """Returns the levels below the root, depth 1 first."""
    levels: list[_Level] = []
    above, internal = [0], [0]
    while nodes := [node for node, parent in enumerate(parents) if parent in internal]:
        frontier = [column for column, node in enumerate(nodes) if node in parents]
        levels.append(
            _Level(
                nodes=nodes,
                parent=np.array([above.index(parents[node]) for node in nodes]),
                row=np.array([internal.index(parents[node]) for node in nodes]),
                rank=np.array([parents[:node].count(parents[node]) for node in nodes]),
                frontier=np.array(frontier, int),
            )
        )
        above, internal = nodes, [nodes[column] for column in frontier]
    return levels


def check(parents: tuple[object, ...]) -> None:
    """Raises ValueError with the name of the wrong node if the parents are not a tree."""
    if not parents:
        raise ValueError("a tree without nodes; give at least the root, parents = (-1,)")
    for node, parent in enumerate(parents):
        if isinstance(parent, bool) or not isinstance(parent, int):
            raise ValueError(f"parents[{node}] is {parent!r}, expected a whole number: the index of the node's parent")
        if node == 0 and parent != -1:
            raise ValueError(f"parents[0] is {parent}, expected -1: node 0 is the root and has no parent")
        if node > 0 and not 0 <= parent < node:
            raise ValueError(
                f"parents[{node}] is {parent}, expected an index from 0 to {node - 1}: a node comes after its parent"
            )


def likeliest_tree(nodes: int, ranks: tuple[float, ...]) -> StaticTree:
    """Returns the tree of the likeliest `nodes` nodes, if a node's i-th child is right with probability `ranks[i]`
    whenever the node is: what Sequoia (Chen et al. 2024, arXiv:2402.12374) finds for a budget of nodes alone.
    """
    paths: list[tuple[int, ...]] = [()]
    while len(paths) < nodes:
        # a path's first unused child, for each path: ranks fall, so the best unused one is among them
        used = [sum(path[:-1] == above and len(path) > len(above) for path in paths) for above in paths]
        free = [(*above, count) for above, count in zip(paths, used, strict=True) if count < len(ranks)]
        paths.append(max(free, key=lambda path: math.prod(ranks[rank] for rank in path)))
    order = sorted(paths, key=lambda path: (len(path), path))
    return StaticTree((-1, *(order.index(path[:-1]) for path in order[1:])))


def _from_paths(*paths: str) -> StaticTree:
    """Returns a tree from the paths to its nodes below the root, in order: the rank of each choice on the way."""
    order = ["", *paths]
    return StaticTree((-1, *(order.index(path[:-1]) for path in paths)))


NO_TREE = StaticTree((-1,))
"""Plain decoding: the root and no guess."""

EAGLE1_TREE = _from_paths(
    *("0", "1", "2", "3"),
    *("00", "01", "02", "10", "11", "20", "21", "30"),
    *("000", "001", "002", "010", "011", "020", "021", "100"),
    *("0000", "0001", "0002"),
    *("00000", "00001"),
)
"""The published tree of EAGLE-1: 25 drafted nodes and the root, depth 5."""
