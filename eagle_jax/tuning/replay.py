"""Replays smaller trees on a text with a large tree drafted at each token, to count the tokens they would commit.

A tree's nodes are sorted best first (`DynamicTree(best_first=True)`), so it contains the smaller trees that the same
drafter would have grown, and the text tells which of their nodes the target would have accepted.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from eagle_jax.decoding.policy import DynamicTree


@dataclasses.dataclass(frozen=True)
class DraftedTree:
    """The tree drafted at one token of a text, best node first; the root, node 0, is that token."""

    tokens: Sequence[int]
    parents: Sequence[int]

    def grown_nodes(self, steps: int, width: int) -> list[int]:
        """Returns the nodes below the root of a tree grown in `steps` expansions of `width`, best first."""
        depth, level_rank = {0: 0}, {0: 0}  # depth of each node of that tree, and its rank among nodes of its depth
        num_children: collections.Counter[int] = collections.Counter()
        num_at_depth: collections.Counter[int] = collections.Counter()
        nodes = []
        for node, parent in enumerate(self.parents[1:], start=1):
            child_rank = num_children[parent]
            num_children[parent] += 1
            is_expanded = parent in depth and depth[parent] <= steps and level_rank[parent] < width
            if not is_expanded or child_rank >= width:
                continue
            depth[node] = depth[parent] + 1
            level_rank[node] = num_at_depth[depth[node]]
            num_at_depth[depth[node]] += 1
            nodes.append(node)
        return nodes

    def nodes_needed(self, following: Sequence[int], steps: int, width: int) -> list[int]:
        """Returns the number of nodes, root included, that the tree needs to follow `following` to each depth."""
        sizes: list[int] = []
        last = 0  # last node of the path
        for size, node in enumerate(self.grown_nodes(steps, width), start=2):
            depth = len(sizes)
            if depth < len(following) and self.parents[node] == last and self.tokens[node] == following[depth]:
                sizes.append(size)
                last = node
        return sizes


@dataclasses.dataclass(frozen=True)
class Text:
    """A text, with the trees drafted at its tokens except the last ones.

    Attributes:
        tokens: all tokens.
        drafted: trees; the root of `drafted[i]` is token i.
    """

    tokens: Sequence[int]
    drafted: Sequence[DraftedTree]


def lengths(texts: Iterable[Text], trees: Iterable[DynamicTree]) -> Mapping[DynamicTree, float]:
    """Returns the mean number of tokens that a step with each tree would have committed on these texts."""
    by_size: dict[tuple[int, int], list[DynamicTree]] = {}
    for tree in trees:
        by_size.setdefault((tree.depth_steps, tree.top_k), []).append(tree)
    texts = list(texts)
    by_tree: dict[DynamicTree, float] = {}
    for (steps, width), trees_of_size in by_size.items():
        paths = [_nodes_needed(text, steps, width) for text in texts]
        by_tree |= {tree: _mean_length(paths, tree.nodes) for tree in trees_of_size}
    return by_tree


def by_rank(texts: Iterable[Text], depths: int, ranks: int) -> list[list[float]]:
    """Returns how often the text's next token is the i-th child at a depth, `[depth][rank]`, as a fraction of the trees
    that were right up to that depth.
    """
    counts = [[0] * ranks for _ in range(depths)]
    totals = [0] * depths
    for text in texts:
        for place, drafted in enumerate(text.drafted):
            node = 0
            for depth, token in enumerate(text.tokens[place + 1 : place + 1 + depths]):
                children = [index for index, parent in enumerate(drafted.parents) if parent == node]
                totals[depth] += 1
                rank = next((rank for rank, index in enumerate(children) if drafted.tokens[index] == token), None)
                if rank is None:
                    break
                if rank < ranks:
                    counts[depth][rank] += 1
                node = children[rank]
    return [[count / max(total, 1) for count in row] for row, total in zip(counts, totals, strict=True)]


def _nodes_needed(text: Text, steps: int, width: int) -> list[list[int]]:
    """Returns `DraftedTree.nodes_needed` at each token with a tree."""
    return [
        drafted.nodes_needed(text.tokens[place + 1 : place + 2 + steps], steps, width)
        for place, drafted in enumerate(text.drafted)
    ]


def _mean_length(texts: Sequence[Sequence[Sequence[int]]], nodes: int) -> float:
    """Returns tokens per step with a tree of `nodes` nodes, given `nodes_needed` at each token of the texts."""
    tokens = steps = 0
    for paths in texts:
        place = 0
        while place < len(paths):
            step = 1 + sum(needed <= nodes for needed in paths[place])
            place += step
            tokens += step
            steps += 1
    return tokens / max(steps, 1)
