"""Default trees of methods, by machine, weights and batch size, where nothing was measured."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from eagle_jax.decoding.budget import shrink_to
from eagle_jax.decoding.policy import DynamicTree, SureChain, TreePolicy, likeliest_tree
from eagle_jax.drafters.medusa import MEDUSA_TREE
from eagle_jax.drafters.token_recycling import RANKS

IN_CACHE = 64 * 2**20  # bytes of weights that a CPU's cache may hold


UNLIMITED = 2**31 - 1


class Rule(NamedTuple):
    """What EAGLE draws where nothing was measured: nobody should be slower than plain decoding for that.

    Attributes:
        tree: for one answer.
        rows: of a batch's trees in all.
        least: nodes of each tree, below which plain decoding is faster.
        longest: tokens of a prompt for each that its answer may have; with more, reading the prompt with the head too
            costs more than drafts save.
    """

    tree: DynamicTree | SureChain
    rows: int
    least: int
    longest: float = math.inf


# On accelerators the weights' traffic hides the arithmetic of about 200 rows in bfloat16 (H200, v5e, v6e: FLOP/s over
# bytes/s is 206 to 560).
PUBLISHED = DynamicTree(60, 7, 10)


ON_ACCELERATORS = Rule(PUBLISHED, rows=256, least=2)


# By whether weights are packed by a backend, whether they are in the cache, and whether they are narrower than
# float32. On cores every row costs: beside weights from memory least, since reading them hides the arithmetic of
# some rows (`benchmarks.decode.speedup`), of fewer where rounded weights are read in half the time and rows keep 16
# bits; beside those in a cache more, so that there a chain ends where the head is unsure, and only where there is one
# answer, beside which nothing else is computed for it. XLA spends most of a product on packing its weight.
PACKED_FROM_MEMORY = Rule(DynamicTree(6, 2, 2), rows=8, least=3)


PACKED_QUANTIZED = Rule(DynamicTree(4, 2, 1), rows=5, least=3)


PACKED_IN_CACHE = {
    True: Rule(SureChain(6, 0.5), rows=6, least=4, longest=6),
    False: Rule(SureChain(6, 0.3), rows=8, least=3, longest=6),
}


OF_XLA = {True: Rule(DynamicTree(6, 2, 2), rows=12, least=2), False: Rule(DynamicTree(8, 6, 1), rows=8, least=2)}


def eagle_tree(model: Any, small: bool, most: int = UNLIMITED) -> DynamicTree | SureChain:
    """On accelerators a target pass over 60 rows should cost about what one over a single row does. On CPU cores every
    row costs, so little of a tree pays.
    """
    if small:
        return shrink_to(rule_for(model).tree, most)
    return shrink_to(dataclasses.replace(PUBLISHED, top_k=min(PUBLISHED.top_k, model.head.draft_vocab_size)), most)


def hybrid_tree(model: Any, small: bool, most: int = UNLIMITED) -> TreePolicy:
    """Leaves room for the tokens that are copied on top of it."""
    tree = eagle_tree(model, small, most)
    return shrink_to(tree, 7) if small else tree


def rule_for(model: Any) -> Rule:
    """What holds for a model on this CPU."""
    packed = model.packed_weights
    if not packed:
        return OF_XLA[_in_bfloat16(model)]
    if model.weights_size < IN_CACHE:
        return PACKED_IN_CACHE[_in_bfloat16(model) or any(weight.is_quantized for weight in packed)]
    few = min(weight.hidden_rows for weight in packed) < PACKED_FROM_MEMORY.rows
    return PACKED_QUANTIZED if few else PACKED_FROM_MEMORY


def _in_bfloat16(model: Any) -> bool:
    """Whether weights are bfloat16, or were before they were rounded; a target that does not say counts as float32."""
    return getattr(model.target, "dtype", None) == jnp.bfloat16


def heads_tree(model: Any, small: bool, most: int = UNLIMITED) -> TreePolicy:
    """The published tree; with fewer heads than it is deep, one that grows to as many nodes."""
    heads = model.head.num_heads
    if small:
        return shrink_to(DynamicTree(4 if heads > 1 else 3, min(heads, 3) - 1, 2), most)
    if heads >= MEDUSA_TREE.depth and most >= MEDUSA_TREE.nodes:
        return MEDUSA_TREE
    return shrink_to(DynamicTree(64 if heads > 1 else 11, heads - 1, 10), most)


def draft_model_tree(model: Any, small: bool, most: int = UNLIMITED) -> TreePolicy:
    return shrink_to(DynamicTree(4, 2, 1) if small else DynamicTree(6, 4, 1), most)


def recycling_tree(model: Any, small: bool, most: int = UNLIMITED) -> TreePolicy:
    return likeliest_tree(min(4 if small else 80, most), RANKS)
