"""Default trees of methods, by machine, weights and batch size, for models without measurements."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from eagle_jax.decoding.policy import DynamicTree, TreePolicy, likeliest_tree, num_candidates
from eagle_jax.drafters.medusa import MEDUSA_TREE
from eagle_jax.drafters.token_recycling import ACCEPTANCE_BY_RANK

CPU_CACHE_BYTES = 64 * 2**20  # weights that fit into a CPU's cache
UNLIMITED = 2**31 - 1


class DefaultTree(NamedTuple):
    """EAGLE's tree without measurements; it should never be slower than plain decoding.

    Attributes:
        tree: tree for a single answer.
        max_batch_nodes: maximum number of nodes of all trees in a batch; trees are shrunk to it.
        min_nodes: minimum number of nodes of a tree; with fewer, plain decoding is faster.
        max_prompt_ratio: maximum number of prompt tokens per token of an answer; with more, prefill of the head costs
            more than drafting saves.
        shared_nodes: trees of at most this size are drafted twice as large and share the batch's nodes.
    """

    tree: DynamicTree
    max_batch_nodes: int
    min_nodes: int
    max_prompt_ratio: float = math.inf
    shared_nodes: int = 0


# On accelerators, reading the weights takes as long as the arithmetic of about 200 rows in bfloat16 (H200, v5e, v6e:
# FLOP/s over bytes/s is 206 to 560).
PUBLISHED = DynamicTree(60, 7, 10)
# With few nodes per request, the best nodes of all trees give more tokens than equal trees: for SmolLM2, 5 to 8 % with
# 4 to 8 nodes for each of 64 requests, and 1 % with 16 (`benchmarks.decode.shared_nodes`).
ON_ACCELERATORS = DefaultTree(PUBLISHED, max_batch_nodes=256, min_nodes=2, shared_nodes=8)

# On CPU cores every row costs (`benchmarks.decode.speedup`, `benchmarks.decode.trees`).
# Packed weights read from memory, which hides the arithmetic of some rows.
PACKED_FROM_MEMORY = DefaultTree(DynamicTree(8, 3, 2, min_probability=0.03), max_batch_nodes=8, min_nodes=3)
# The same for quantized weights, which are read in half the time and hide fewer rows.
PACKED_QUANTIZED = DefaultTree(DynamicTree(4, 2, 2, min_probability=0.1), max_batch_nodes=5, min_nodes=3)
# Packed weights that stay in the cache, by whether they are narrower than float32. Only one answer at a time has a
# tree, or two in float32.
PACKED_IN_CACHE = {
    True: DefaultTree(DynamicTree.chain(6, 0.15), max_batch_nodes=6, min_nodes=4, max_prompt_ratio=6),
    False: DefaultTree(DynamicTree.chain(6, 0.1), max_batch_nodes=8, min_nodes=3, max_prompt_ratio=6),
}
# Products by XLA, by whether the weights are bfloat16; XLA spends most of the time on packing the weights.
XLA_PRODUCTS = {
    True: DefaultTree(DynamicTree(6, 2, 2), max_batch_nodes=12, min_nodes=2),
    False: DefaultTree(DynamicTree(8, 6, 1), max_batch_nodes=8, min_nodes=2),
}


def cpu_default(model: Any) -> DefaultTree:
    """Returns the default tree for a model on this CPU."""
    packed = model.packed_weights
    if not packed:
        return XLA_PRODUCTS[_in_bfloat16(model)]
    if model.weights_size < CPU_CACHE_BYTES:
        return PACKED_IN_CACHE[_in_bfloat16(model) or any(weight.is_quantized for weight in packed)]
    hides_few_rows = min(weight.hidden_rows for weight in packed) < PACKED_FROM_MEMORY.max_batch_nodes
    return PACKED_QUANTIZED if hides_few_rows else PACKED_FROM_MEMORY


def _in_bfloat16(model: Any) -> bool:
    """Returns whether weights are, or were before quantization, bfloat16; a target without dtype counts as float32."""
    return getattr(model.target, "dtype", None) == jnp.bfloat16


def shrink_to(tree: DynamicTree, max_nodes: int) -> DynamicTree:
    """Returns the tree with at most `max_nodes` nodes (at least 2), made narrower first, then less deep. Trees with a
    beam or a minimum probability keep their most likely nodes.
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
    """Returns EAGLE's default tree: the published one on accelerators, where verifying 60 rows takes about as long as
    one row, and a small one on CPUs, where every row costs.
    """
    if small:
        return shrink_to(cpu_default(model).tree, max_nodes)
    return shrink_to(dataclasses.replace(PUBLISHED, top_k=min(PUBLISHED.top_k, model.head.draft_vocab_size)), max_nodes)


def hybrid_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    """Returns EAGLE's default tree, on CPUs small enough to add copied tokens."""
    tree = eagle_tree(model, small, max_nodes)
    return shrink_to(tree, 7) if small else tree


def dflash_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> DynamicTree:
    """Returns DFlash's default tree. The published trees are a chain of the whole block (DFlash) and, for a causal
    head, the most likely paths over the seven best tokens of each position (JetSpec, budget 128).
    """
    depth, causal_layers = model.head.num_drafted, model.head.config.causal_layers
    if small:
        return shrink_to(_short_chain(depth), max_nodes)
    if len(causal_layers) < model.head.config.layers.num_hidden_layers:
        return shrink_to(DynamicTree.chain(depth + 1), max_nodes)
    width = min(7, model.head.max_children)
    # without a beam, a Markov head would need a product over the vocabulary for each node of a level
    beam = 127 if model.head.config.markov is None else None
    nodes = min(128, 1 + num_candidates(depth - 1, width, beam))
    return shrink_to(DynamicTree(nodes, depth - 1, width, beam and nodes - 1), max_nodes)


def peagle_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> DynamicTree:
    """Returns P-EAGLE's default tree: the published chain of all tokens that one pass drafts, on CPUs a short one."""
    depth = model.head.num_drafted
    return shrink_to(_short_chain(depth) if small else DynamicTree.chain(depth + 1), max_nodes)


def _short_chain(depth: int) -> DynamicTree:
    """Returns a chain without unlikely nodes, for CPUs and heads that draft `depth` tokens in one pass."""
    return DynamicTree.chain(min(6, depth + 1), 0.15)


def heads_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    """Returns Medusa's published tree; with fewer heads than its depth, a dynamic tree of about as many nodes."""
    heads = model.head.num_drafted
    if small:
        return shrink_to(DynamicTree(4 if heads > 1 else 3, min(heads, 3) - 1, 2), max_nodes)
    if heads >= MEDUSA_TREE.depth and max_nodes >= MEDUSA_TREE.nodes:
        return MEDUSA_TREE
    return shrink_to(DynamicTree(64 if heads > 1 else 11, heads - 1, 10), max_nodes)


def draft_model_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    return shrink_to(DynamicTree(4, 2, 1) if small else DynamicTree(6, 4, 1), max_nodes)


def recycling_tree(model: Any, small: bool, max_nodes: int = UNLIMITED) -> TreePolicy:
    return likeliest_tree(min(4 if small else 80, max_nodes), ACCEPTANCE_BY_RANK)
