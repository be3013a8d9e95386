"""Tree policies: which guesses become a draft tree."""

from eagle_jax.decoding.policy.base import Carry, Extend, TreePolicy, best, check_width, keep_best
from eagle_jax.decoding.policy.dynamic import DynamicTree, num_candidates
from eagle_jax.decoding.policy.static import EAGLE1_TREE, NO_TREE, StaticTree, likeliest_tree

__all__ = [
    "Carry",
    "DynamicTree",
    "EAGLE1_TREE",
    "Extend",
    "NO_TREE",
    "StaticTree",
    "TreePolicy",
    "best",
    "check_width",
    "keep_best",
    "likeliest_tree",
    "num_candidates",
]
