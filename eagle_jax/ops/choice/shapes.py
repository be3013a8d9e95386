"""The class of a call: calls of one class are computed by the same candidate."""

from typing import Any

import jax

from eagle_jax.ops.attention_call import AttentionCall
from eagle_jax.ops.quantized import QuantArray


def shape_of(operation: str, args: tuple[Any, ...], fixed: dict[str, Any]) -> str | None:
    """Returns the class of a call, without rows and cache positions; None if the operation has no classes.

    In `linear` a packed weight has no class, since packing it chose the backend.
    """
    if operation == "tree_attention":
        return _attention(args[0])
    if operation == "linear":
        return weight_shape(args[1])
    if operation in ("top_k", "argmax"):
        return f"{args[0].shape[-1]} of {args[0].dtype}"
    if operation == "rms_norm":
        return f"{args[0].shape[-1]} of {args[0].dtype}"
    if operation == "mlp_block":
        return f"{args[0].shape[-1]} of {args[0].dtype}, {_matrices(args[1])}"
    if operation == "attention_block":
        (_, heads, _, size), window = args[4][0].shape, ", window" if args[3].first is not None else ""
        return f"{heads} heads of {size}{window}, {_matrices(args[2])}"
    return None


def weight_shape(weight: Any) -> str | None:
    """Returns the class of a product; None for a packed weight."""
    if hasattr(weight, "unpack"):
        return None
    kind = str(weight.quant_type) if isinstance(weight, QuantArray) else ""
    return f"{weight.size // weight.shape[-1]} x {weight.shape[-1]} of {weight.dtype}{kind and f', {kind}'}"


def _attention(call: AttentionCall) -> str:
    heads, size = call.q.shape[1], call.q.shape[3]
    more = {"window": call.first, "softcap": call.softcap, "sinks": call.sinks}
    named = "".join(f", {name}" for name, value in more.items() if value is not None)
    return f"{heads} x {call.group} heads of {size}, {call.q.dtype} and {call.prefix[0].dtype}{named}"


def _matrices(weights: Any) -> str:
    """Returns sizes and kinds of the matrices of a block."""
    from eagle_jax.ops.packing import is_leaf  # it asks the dispatcher, which asks this module

    leaves = jax.tree.leaves(weights, is_leaf=is_leaf)
    return ", ".join(f"{'x'.join(map(str, leaf.shape))} {leaf.dtype}" for leaf in leaves if leaf.ndim > 1)
