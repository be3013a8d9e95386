"""Attention by XLA that reads a prefix of the cache instead of all of it: a candidate besides the reference."""

from jaxtyping import Array, Float

from eagle_jax.ops import attention_reference
from eagle_jax.ops.attention_call import AttentionCall


def tree_attention(case: AttentionCall) -> Float[Array, "b k r c"]:
    """Attends to the smallest of several prefixes that holds the longest row, chosen while the program runs."""
    if len(attention_reference.prefixes(case.slots)) == 1:
        raise NotImplementedError(f"a cache of {case.slots} slots has no smaller prefixes")
    return attention_reference.by_prefix(case)
