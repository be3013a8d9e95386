"""Slow, obvious writings of what the decoding core does, in numpy and Python loops."""

import heapq
import math
from collections.abc import Callable
from typing import Any

import numpy as np


def ancestors(parents: list[int], valid: list[bool]) -> np.ndarray:
    """The attention mask of one tree, by climbing from every node."""
    mask = np.eye(len(parents), dtype=bool)
    for node in range(len(parents)):
        above = node
        while valid[above] and parents[above] >= 0:
            above = parents[above]
            mask[node, above] = True
    return mask


def walk(tokens: list[int], parents: list[int], valid: list[bool], draws: list[int]) -> tuple[list[int], list[int]]:
    """The nodes on the walk and the tokens drawn at them."""
    path = [0]
    while True:
        wanted = draws[path[-1]]
        children = [j for j in range(1, len(parents)) if parents[j] == path[-1] and valid[j] and tokens[j] == wanted]
        if not children:
            return path, [draws[node] for node in path]
        path.append(children[0])


def best(scores: np.ndarray, count: int) -> list[int]:
    """Indices of the best scores; ties go to the lower index."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


def dynamic_tree(
    nodes: int,
    depth_steps: int,
    top_k: int,
    scores: Callable[[tuple[int, ...]], np.ndarray],
    beam: int | None = None,
    least: float = 0.0,
) -> list[tuple[tuple[int, ...], np.float32]]:
    """The (path of tokens, score) of every node of the EAGLE-2 tree but the root, in order.

    `scores(path)` gives the log-probabilities of every token after a path; `beam` is the width of a frontier. Paths
    less likely than `least` are left out, and those that would be, were the next guess as sure as those so far, have
    no children.
    """
    beam = top_k if beam is None else beam

    def children(path: tuple[int, ...], score: np.float32) -> list[tuple[tuple[int, ...], np.float32]]:
        below = scores(path)
        return [((*path, token), np.float32(score + below[token])) for token in best(below, top_k)]

    lowest = -np.inf if least == 0 else math.log(least)
    block = [child for child in children((), np.float32(0)) if child[1] >= np.float32(lowest)]
    found = list(block)
    for guesses in range(1, depth_steps + 1):
        frontier = [block[i] for i in best(np.array([score for _, score in block]), beam)]
        followed = [one for one in frontier if one[1] >= np.float32(lowest * guesses / (guesses + 1))]
        block = [child for path, score in followed for child in children(path, score)]
        block = [child for child in block if child[1] >= np.float32(lowest)]
        found += block
    kept = best(np.array([score for _, score in found]), nodes - 1)
    return [found[i] for i in sorted(kept)]


def best_first_tree(
    nodes: int, depth: int, top_k: int, scores: Callable[[tuple[int, ...]], np.ndarray]
) -> list[tuple[tuple[int, ...], np.float32]]:
    """The same of the likeliest paths of all, as far as there are any, likeliest first: a heap of nodes, of which the
    best is taken and its children are put in. Of equal ones that count which are less deep, then those of the better
    parent, then those of the lower token.
    """
    heap: list[tuple[Any, ...]] = []

    def put(path: tuple[int, ...], score: np.float32, above: tuple) -> None:
        below = scores(path)
        for rank, token in enumerate(best(below, top_k)):
            child = np.float32(score + below[token])
            if child > -np.inf:
                heapq.heappush(heap, (-child, len(path), (above, rank), (*path, token)))

    put((), np.float32(0), ())
    found = []
    while heap and len(found) < nodes - 1:
        negative, _, order, path = heapq.heappop(heap)
        found.append((path, -negative))
        if len(path) < depth:
            put(path, -negative, (negative, order))
    return found


def warp(
    logits: np.ndarray, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """One row of logits in float64; filters one after the other, each on what the one before has left."""
    logits = logits.astype(np.float64) / temperature
    if top_k:
        logits = np.array([x if np.sum(logits > x) < top_k else -math.inf for x in logits])
    if top_p < 1:
        p = softmax(logits)
        logits = np.array([x if p[logits > x].sum() < top_p else -math.inf for x in logits])
    if min_p:
        p = softmax(logits)
        logits = np.where(p >= min_p * p.max(), logits, -math.inf)
    return logits


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
