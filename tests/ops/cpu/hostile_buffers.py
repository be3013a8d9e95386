"""Calls every handler of the CPU backend with right buffers and with wrong ones, and prints what became of it.

A process of its own: a handler that touches memory which is not its own may end it.
"""

import collections
import json
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from eagle_jax.ops.cpu import library, packed_linear, quantized_products
from eagle_jax.ops.cpu.product_kind import FLOAT_ROWS, ProductKind
from eagle_jax.ops.cpu.quantized_arithmetic import has_byte_products
from eagle_jax.ops.cpu.signatures import Signature

# Lengths of a right call, by the names of its signature: for handlers whose name begins so.
HALF = {
    "b": 2,
    "y": 2,
    "n": 3,
    "i": 32,
    "h": 32,
    "z": 32,
    "a": 16,
    "c": 32,
    "k": 2,
    "m": 4,
    "u": 64,
    "w": 3,
    "g": 6,
    "r": 6,
    "p": 32,
}
QUANTIZED = {"r": 3, "i": 64, "s": 2, "j": 8, "w": 16, "l": 16, "g": 2, "o": 32, "k": 2}
LENGTHS = {
    "eagle_jax_product_f32": {"r": 3, "i": 16, "s": 2, "j": 16, "l": 16, "o": 32},
    "eagle_jax_product_bf16": {"r": 3, "i": 16, "s": 2, "j": 8, "l": 32, "o": 32},
    "eagle_jax_attention": {"b": 2, "k": 2, "r": 6, "c": 16, "m": 5, "n": 3, "p": 64, "u": 70, "w": 3},
    "eagle_jax_norm": {"r": 3, "h": 32},
    "eagle_jax_top_k": {"r": 3, "v": 50, "k": 4},
    "eagle_jax_attention_block_f32": HALF | {"s": 16, "j": 32, "l": 16, "q": 256, "v": 128, "t": 2, "e": 128, "d": 16},
    "eagle_jax_attention_block_bf16": HALF | {"s": 16, "j": 16, "l": 32, "q": 256, "v": 128, "t": 2, "e": 64, "d": 32},
    "eagle_jax_mlp_block_f32": {"r": 3, "h": 32, "s": 4, "j": 32, "l": 16, "a": 32, "t": 2, "e": 32, "d": 16},
    "eagle_jax_mlp_block_bf16": {"r": 3, "h": 32, "s": 4, "j": 16, "l": 32, "a": 32, "t": 2, "e": 16, "d": 32},
    "eagle_jax_product_int8": QUANTIZED | {"j": 16},
    "eagle_jax_product_int4": QUANTIZED,
    "eagle_jax_product_int4_minima": QUANTIZED | {"l": 32},
    "eagle_jax_product_int8_minima": QUANTIZED | {"l": 32, "j": 16},
    "eagle_jax_product_e2m1": QUANTIZED,
    "eagle_jax_product_e4m3": QUANTIZED | {"j": 16},
}
PARTS = [
    None,
    *(ProductKind(bits, x_bits) for bits in (8, 4) for x_bits in (16, 8) if x_bits == 16 or has_byte_products()),
    ProductKind(4, 16, has_minima=True, scale_dtype="float16"),
    ProductKind(8, 16, has_minima=True),
    ProductKind(4, 16, "e2m1"),
    ProductKind(8, FLOAT_ROWS, "e4m3"),
]
Buffers = dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape by name


def signatures() -> dict[str, Signature]:
    """Those of all handlers, by name."""
    found: dict[str, Signature] = {}
    for part in PARTS:
        library.make(part)
        for piece in library.pieces(part):
            adds = piece if hasattr(piece, "add_handler") else packed_linear  # which adds the float ones
            adds = quantized_products if isinstance(piece, quantized_products.Products) else adds
            with mock.patch.object(
                adds, "add_handler", lambda module, name, signature, body: found.update({name: signature})
            ):
                piece.build(None)
    return found


def parsed(type_: str) -> tuple[str, list[str]]:
    dtype, axes = type_.removesuffix("]").split("[")
    return dtype, [axis.strip() for axis in axes.split(",") if axis.strip()]


def right(types: dict[str, str], lengths: dict[str, int]) -> Buffers:
    found = {}
    for name, type_ in types.items():
        dtype, axes = parsed(type_)
        found[name] = dtype, tuple(int(axis) if axis.isdigit() else lengths[axis] for axis in axes)
    return found


def allowed(signature: Signature, buffers: Buffers) -> bool:
    """What the signature says, in plain Python."""
    types, lengths = {**signature.arguments, **signature.results}, {}
    if list(types) != list(buffers):
        return False
    for name, type_ in types.items():
        dtype, axes = parsed(type_)
        if buffers[name][0] != dtype or len(buffers[name][1]) != len(axes):
            return False
        for axis, size in zip(axes, buffers[name][1], strict=True):
            if (int(axis) if axis.isdigit() else lengths.setdefault(axis, size)) != size:
                return False
    return all(eval(relation, {}, lengths) for relation in signature.relations)


def wrong(buffers: Buffers) -> list[Buffers]:
    """One buffer at a time: another dtype, an axis more, an axis less, each axis one longer, shorter, twice as long."""
    changed = []
    for name, (dtype, shape) in buffers.items():
        forms = [("float32" if dtype != "float32" else "int32", shape), (dtype, (*shape, 1)), (dtype, (1, *shape))]
        if shape:
            forms.append((dtype, shape[1:]))
        for axis, size in enumerate(shape):
            forms += [
                (dtype, (*shape[:axis], other, *shape[axis + 1 :])) for other in (size + 1, size - 1, 2 * size, 0)
            ]
        changed += [buffers | {name: form} for form in forms]
    return changed


def value(name: str, dtype: str, shape: tuple[int, ...]) -> jax.Array:
    """Small numbers; counts and lengths that point nowhere."""
    if name in ("length", "cache_rows", "num_valid", "first", "count", "spans") and dtype == "int32":
        return jnp.full(shape, WILD, jnp.int32)
    return jnp.asarray(np.ones(shape, np.dtype(getattr(ml_dtypes, dtype, None) or dtype)))


def call(name: str, arguments: Buffers, results: Buffers) -> bool:
    """Whether the call succeeds."""
    made = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in results.values()]
    try:
        given = [value(argument, *form) for argument, form in arguments.items()]
        jax.block_until_ready(jax.ffi.ffi_call(name, made)(*given))
    except jax.errors.JaxRuntimeError as error:
        assert name in str(error), error
        return False
    return True


def tried(name: str, signature: Signature, counts: collections.Counter) -> None:
    lengths = next(found for prefix, found in reversed(LENGTHS.items()) if name.startswith(prefix))
    arguments, results = (right(types, lengths) for types in (signature.arguments, signature.results))
    whole = arguments | results
    assert allowed(signature, whole) and call(name, arguments, results), f"{name}: a right call fails"
    counts["right"] += 1
    for buffers in wrong(whole):
        if any(0 in buffers[key][1] for key in results):
            continue  # XLA does not call what gives nothing
        expected = allowed(signature, buffers)
        parts = ({key: buffers[key] for key in part} for part in (arguments, results))
        assert call(name, *parts) == expected, (name, buffers)
        counts["allowed" if expected else "refused"] += 1
    first, *_ = arguments
    fewer, more = {key: form for key, form in arguments.items() if key != first}, {"more": ("float32", (2,))}
    for parts in ((fewer, results), (arguments | more, results), (arguments, results | more)):
        assert not call(name, *parts), (name, parts)
        counts["refused"] += 1
    assert call(name, arguments, results), f"{name}: a right call fails after wrong ones"


if __name__ == "__main__":
    totals: collections.Counter = collections.Counter()
    for WILD in (1, 2**31 - 1, -(2**31)):
        for handler, types in signatures().items():
            if WILD == 1:
                tried(handler, types, totals)
            else:
                sizes = next(found for prefix, found in reversed(LENGTHS.items()) if handler.startswith(prefix))
                assert call(handler, right(types.arguments, sizes), right(types.results, sizes)), handler
                totals["wild counts"] += 1
            if "spans" in types.arguments:  # three requests in a row
                sizes = next(found for prefix, found in reversed(LENGTHS.items()) if handler.startswith(prefix))
                sizes = sizes | {"b": 1, "y": 3, "m": 0, "r": sizes["n"]}
                assert call(handler, right(types.arguments, sizes), right(types.results, sizes)), handler
                totals["requests in a row"] += 1
    print(json.dumps(totals))
