"""Default trees of methods, by machine, weights and batch size, where nothing was measured."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from eagle_jax.decoding.policy import DynamicTree, TreePolicy, likeliest_tree, num_candidates
from eagle_jax.drafters.medusa import MEDUSA_TREE
from eagle_jax.drafters.token_recycling import RANKS

IN_CACHE = 64 * 2**20  # bytes of weights that a CPU's cache may hold
UNLIMITED = 2**31 - 1


class DefaultTree(NamedTuple):
    """What EAGLE draws where nothing was measured: nobody should be slower than plain decoding for that.

    Attributes:
        tree: for one answer.
        max_batch_nodes: of the trees of a batch together; a tree is shrunk until they are no more.
        min_nodes: of each tree; with fewer plain decoding is faster.
        max_prompt_ratio: tokens of a prompt for each that its answer may have; with more, reading the prompt with the
            head too costs more than drafts save.
        shared_nodes: trees of at most this number of nodes are drafted twice as large, and share the room of the batch.
    """

    tree: DynamicTree
    max_batch_nodes: int
    min_nodes: int
    max_prompt_ratio: float = math.inf
    shared_nodes: int = 0


# On accelerators the weights' traffic hides the arithmetic of about 200 rows in bfloat16 (H200, v5e, v6e: FLOP/s over
# bytes/s is 206 to 560).
PUBLISHED = DynamicTree(60, 7, 10)
# Where requests have few nodes each, the best of all trees bring more tokens than a tree for each: of SmolLM2's, 5 to
# 8 % with 4 to 8 nodes for each of 64, and 1 % with 16 (`benchmarks.decode.shared_nodes`).
ON_ACCELERATORS = DefaultTree(PUBLISHED, max_batch_nodes=256, min_nodes=2, shared_nodes=8)

# On CPU cores every row costs (`benchmarks.decode.speedup`, `benchmarks.decode.trees`).
# Packed weights read from memory: that hides the arithmetic of some rows, so rows cost least here.
PACKED_FROM_MEMORY = DefaultTree(DynamicTree(8, 3, 2, min_probability=0.03), max_batch_nodes=8, min_nodes=3)
# The same where quantised weights are read in half the time and rows keep 16 bits: it hides fewer rows.
PACKED_QUANTIZED = DefaultTree(DynamicTree(4, 2, 2, min_probability=0.1), max_batch_nodes=5, min_nodes=3)
# Packed weights that stay in the cache, by whether they are narrower than float32. Only few answers have a tree: one,
# or two in float32.
PACKED_IN_CACHE = {
    True: DefaultTree(DynamicTree.chain(6, 0.15), max_batch_nodes=6, min_nodes=4, max_prompt_ratio=6),
    False: DefaultTree(DynamicTree.chain(6, 0.1), max_batch_nodes=8, min_nodes=3, max_prompt_ratio=6),
}
# Products by XLA, by whether the weights are bfloat16: it spends most of a product on packing its weight.
OF_XLA = {
    True: DefaultTree(DynamicTree(6, 2, 2), max_batch_nodes=12, min_nodes=2),
    False: DefaultTree(DynamicTree(8, 6, 1), max_batch_nodes=8, min_nodes=2),
}


def cpu_default(model: Any) -> DefaultTree:
    """Returns the default tree for a model on this CPU."""
    packed = model.packed_weights
    if not packed:
        return OF_XLA[_in_bfloat16(model)]
    if model.weights_size < IN_CACHE:
        return PACKED_IN_CACHE[_in_bfloat16(model) or any(weight.is_quantized for weight in packed)]
    few = min(weight.hidden_rows for weight in packed) < PACKED_FROM_MEMORY.max_batch_nodes
    return PACKED_QUANTIZED if few else PACKED_FROM_MEMORY


def _in_bfloat16(model: Any) -> bool:
    """Returns whether weights are bfloat16, or were before they were rounded; a target that does not say counts as
    float32.
    """
    return getattr(model.target, "dtype", None) == jnp.bfloat16


def shrink_to(tree: DynamicTree, max_nodes: int) -> DynamicTree:
    """Returns the tree cut down to `most` nodes (at least 2) in its own proportions: narrower first, then less deep.
    One with a beam has the likeliest nodes of those that it had, and so has one that ends where the drafter is unsure.
    """
    if tree.nodes <= max_nodes:
        return tree
    if tree.min_probability:
        return dataclasses.replace(tree, nodes=max_nodes, depth_steps=min(tree.depth_steps, max_nodes - 2))
    if tree.beam is not None:
        beam, steps = max(1, tree.beam * max_nodes // tree.nodes), min(tree.depth_steps, max_nodes - 2)
        nodes = min(max_nodes, 1 + num_candidates(steps, tree.top_k, beam))
        return dataclasses.replace(tree, nodes=nodes, depth_steps=steps, beam=beam)
    width = max(1, tree.top_k * max_nodes // tree.nodes)
    steps = min(tree.depth_steps, max_nodes - 2, max_nodes.bit_length())
    return DynamicTree(min(max_nodes, 1 + width + steps * width**2), steps, width)


def eagle_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> DynamicTree:
    """Returns EAGLE's default tree. On accelerators a step that verifies 60 rows should take about as long as one of a
    single row. On CPU cores every row costs, so little of a tree pays.
    """
    if small:
        return shrink_to(cpu_default(model).tree, max_nodes)
    return shrink_to(dataclasses.replace(PUBLISHED, top_k=min(PUBLISHED.top_k, model.head.draft_vocab_size)), max_nodes)


def hybrid_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    """Leaves room for the tokens that are copied on top of it."""
    tree = eagle_tree(model, small, max_nodes)
    return shrink_to(tree, 7) if small else tree


def dflash_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> DynamicTree:
    """Returns DFlash's default tree. Published are a chain of all that the block drafts (DFlash), and of a causal head
    the likeliest paths over the slots' seven best tokens (JetSpec, budget 128).

    On CPU cores a chain ends where the head is unsure: what lies after costs nothing to draft, but to verify.
    """
    depth, causal_layers = model.head.num_drafted, model.head.config.causal_layers
    if small:
        return shrink_to(_short_chain(depth), max_nodes)
    if len(causal_layers) < model.head.config.layers.num_hidden_layers:
        return shrink_to(DynamicTree.chain(depth + 1), max_nodes)
    width = min(7, model.head.max_children)
    # a Markov head has a product over the vocabulary for each row of a frontier
    beam = 127 if model.head.config.markov is None else None
    nodes = min(128, 1 + num_candidates(depth - 1, width, beam))
    return shrink_to(DynamicTree(nodes, depth - 1, width, beam and nodes - 1), max_nodes)


def peagle_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> DynamicTree:
    """Returns P-EAGLE's default tree. Published is a chain of all that one pass drafts. On CPU cores it ends where
    the head is unsure.
    """
    depth = model.head.num_drafted
    return shrink_to(_short_chain(depth) if small else DynamicTree.chain(depth + 1), max_nodes)


def _short_chain(depth: int) -> DynamicTree:
    """Returns a chain for heads that draft `depth` tokens in one pass, where every node costs: what is unlikely is
    left out.
    """
    return DynamicTree.chain(min(6, depth + 1), 0.15)


def heads_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    """Returns the published tree; with fewer heads than it is deep, one that grows to as many nodes."""
    heads = model.head.num_drafted
    if small:
        return shrink_to(DynamicTree(4 if heads > 1 else 3, min(heads, 3) - 1, 2), max_nodes)
    if heads >= MEDUSA_TREE.depth and max_nodes >= MEDUSA_TREE.nodes:
        return MEDUSA_TREE
    return shrink_to(DynamicTree(64 if heads > 1 else 11, heads - 1, 10), max_nodes)


def draft_model_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    return shrink_to(DynamicTree(4, 2, 1) if small else DynamicTree(6, 4, 1), max_nodes)


def recycling_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    return likeliest_tree(min(4 if small else 80, max_nodes), RANKS)
