"""The operations that the TPU backend has. Elsewhere its kernel is interpreted, which is slow."""

from jaxtyping import Array, Float

from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.ops.tpu.tree_attention import attend
from eagle_jax.sharding import by_head


def tree_attention(call: AttentionCall) -> Float[Array, "b k r c"]:
    if call.sinks is not None:
        raise NotImplementedError("sinks are not supported")
    return by_head(attend, call)
