"""XLA attention that reads a prefix of the cache: a candidate with the reference."""

from jaxtyping import Array, Float

from eagle_jax.ops import attention_reference
from eagle_jax.ops.attention_call import AttentionCall


def tree_attention(call: AttentionCall) -> Float[Array, "b k r c"]:
    """Attends to the smallest prefix that holds the longest row, chosen at run time."""
    if len(attention_reference.prefixes(call.slots)) == 1:
        raise NotImplementedError(f"a cache of {call.slots} slots has no smaller prefixes")
    return attention_reference.by_prefix(call)
