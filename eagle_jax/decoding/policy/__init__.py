"""Tree policies: which guesses become a draft tree."""

from eagle_jax.decoding.policy.base import Carry, Extend, TreePolicy, best, keep_best
from eagle_jax.decoding.policy.dynamic import DynamicTree
from eagle_jax.decoding.policy.static import EAGLE1_TREE, NO_TREE, StaticTree

__all__ = ["Carry", "DynamicTree", "EAGLE1_TREE", "Extend", "NO_TREE", "StaticTree", "TreePolicy", "best", "keep_best"]
