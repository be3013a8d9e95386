"""How far smaller trees would have gone: a text with the large tree that was drafted at every place of it.

A tree's nodes come best first (`DynamicTree(best_first=True)`), so the tree of fewer nodes, levels or children that the
same drafter would have grown can be read off, and the text says which of its nodes the target would have walked.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from eagle_jax.decoding.policy import DynamicTree


@dataclasses.dataclass(frozen=True)
class DraftedTree:
    """The tree of one place of a text, best node first; the root, node 0, is the text's token there."""

    tokens: Sequence[int]
    parents: Sequence[int]

    def grown_nodes(self, steps: int, width: int) -> list[int]:
        """Returns the nodes below the root that a tree grown in `steps` expansions of `width` finds, best first."""
        depth, level_rank = {0: 0}, {0: 0}  # of nodes that it finds; the rank is that among all of one depth
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
        """Returns how many nodes that tree has to keep, root included, for the path of `following` to reach each depth,
        as far as the tree has it.
        """
        needed: list[int] = []
        last = 0  # node of the path
        for size, node in enumerate(self.grown_nodes(steps, width), start=2):
            depth = len(needed)
            if depth < len(following) and self.parents[node] == last and self.tokens[node] == following[depth]:
                needed.append(size)
                last = node
        return needed


@dataclasses.dataclass(frozen=True)
class Text:
    """A text, and what was drafted at each of its tokens but those at the end.

    Attributes:
        tokens: all of them.
        drafted: `drafted[i]` has token i for its root.
    """

    tokens: Sequence[int]
    drafted: Sequence[DraftedTree]


def lengths(texts: Iterable[Text], trees: Iterable[DynamicTree]) -> Mapping[DynamicTree, float]:
    """Returns how many tokens a step would have committed with each tree, decoding the same texts from start to end."""
    sizes: dict[tuple[int, int], list[DynamicTree]] = {}
    for tree in trees:
        sizes.setdefault((tree.depth_steps, tree.top_k), []).append(tree)
    texts = list(texts)
    by_tree: dict[DynamicTree, float] = {}
    for (steps, width), alike in sizes.items():
        paths = [_nodes_needed(text, steps, width) for text in texts]
        by_tree |= {tree: _mean_length(paths, tree.nodes) for tree in alike}
    return by_tree


def by_rank(texts: Iterable[Text], depths: int, ranks: int) -> list[list[float]]:
    """Returns how often the text's next token is a node's i-th child, at the root and below it: `[depth][rank]`, as a
    share of the trees that were right so far.
    """
    counts = [[0] * ranks for _ in range(depths)]
    tried = [0] * depths
    for text in texts:
        for place, drafted in enumerate(text.drafted):
            node = 0
            for depth, token in enumerate(text.tokens[place + 1 : place + 1 + depths]):
                below = [index for index, above in enumerate(drafted.parents) if above == node]
                tried[depth] += 1
                right = [rank for rank, index in enumerate(below) if drafted.tokens[index] == token]
                if not right:
                    break
                if right[0] < ranks:
                    counts[depth][right[0]] += 1
                node = below[right[0]]
    return [[count / max(total, 1) for count in row] for row, total in zip(counts, tried, strict=True)]


def _nodes_needed(text: Text, steps: int, width: int) -> list[list[int]]:
    """Returns `Guessed.nodes_needed` at every place."""
    return [
        drafted.nodes_needed(text.tokens[place + 1 : place + 2 + steps], steps, width)
        for place, drafted in enumerate(text.drafted)
    ]


def _mean_length(texts: Sequence[Sequence[Sequence[int]]], nodes: int) -> float:
    """Returns tokens per step with a tree of `nodes` nodes, over texts with known nodes needed at each place."""
    tokens = steps = 0
    for paths in texts:
        place = 0
        while place < len(paths):
            step = 1 + sum(needed <= nodes for needed in paths[place])
            place += step
            tokens += step
            steps += 1
    return tokens / max(steps, 1)
