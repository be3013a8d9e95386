"""The operations that the GPU backend has."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.ops.gpu import int4
from eagle_jax.ops.gpu.tree_attention import attend
from eagle_jax.ops.quantized import QuantArray
from eagle_jax.sharding import by_head
from eagle_jax.sharding.tracing import is_sharded


def tree_attention(case: AttentionCall) -> Float[Array, "b k r c"]:
    if jax.default_backend() != "gpu":
        raise NotImplementedError("there is no GPU")
    if case.sinks is not None:
        raise NotImplementedError("it has no sinks")
    return by_head(attend, case)


def linear(rows: Float[Array, "r i"], weight: Any, num_valid: Int[Array, ""]) -> Float[Array, "r ..."]:
    """Computes the product of few rows with weights of 4 bits in groups."""
    del num_valid
    if (reason := _refusal()) is not None:
        raise NotImplementedError(reason)
    if not isinstance(weight, QuantArray) or weight.bits != 4:
        raise NotImplementedError("the weight is not quantized to 4 bits")
    if is_sharded():
        raise NotImplementedError("the program is over several devices")
    if weight.dtype != jnp.bfloat16:
        raise NotImplementedError(f"weights are multiplied in {weight.dtype}")
    if not 0 < rows.shape[0] <= int4.MAX_ROWS:
        raise NotImplementedError(f"more than {int4.MAX_ROWS} rows")
    *_, inputs = weight.shape
    reason = int4.refusal(weight.size // inputs, inputs, weight.scales.shape[-1])
    if reason is not None:
        raise NotImplementedError(reason)
    codes, scales = (part.reshape(-1, part.shape[-1]) for part in jax.tree.leaves(weight))
    return int4.product(rows.astype(jnp.bfloat16), codes, scales).reshape(-1, *weight.shape[:-1])


def _refusal() -> str | None:
    if jax.default_backend() != "gpu":
        return "there is no GPU"
    try:
        from jax.experimental.pallas import triton  # noqa: F401  # whether it is there is the question
    except ImportError:
        return f"JAX {jax.__version__} has no Triton lowering"
    return None
