"""Where rows meet weights: every matrix product of the models, of float weights, in strips or not, and rounded ones."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.kernels import int4_gpu, native
from eagle_jax.models.precision import precision
from eagle_jax.models.quant import QuantArray, dense
from eagle_jax.models.strips import AnyStrips, Strips, out_of_strips
from eagle_jax.sharding.tracing import is_spread

# Columns that CPUs make floats of at a time: a sixteenth of them within these bounds. Of a whole matrix XLA would make
# floats before the decoding loop, once, and of every matrix: the rounded model would lie beside a float one. A block's
# floats stay in the core's cache, so that blocks are also quicker: with 2048 x 8192 twice, on two cores
# (`benchmarks/products.py`).
SMALLEST_BLOCK, LARGEST_BLOCK = 128, 512

# Rows that a float32 matrix `[out, in]` is the left operand for on CPU, where XLA packs or strides through the right
# one: with 2048 x 8192, 4 rows take a third as long and 8 rows three tenths (`benchmarks/products.py`). Of what lies
# between these the product is slower than of the next larger.
FEW_ROWS = (4, 8, 16, 32)


def matmul(x: Float[Array, "*rows i"], weight: Float[Array, "*o i"] | QuantArray | AnyStrips) -> Float[Array, "..."]:
    """`x @ weight.T` in float32; multiplied in the weight's dtype and accumulated in float32, but with rounded strips
    `x` is rounded too (`native.row_bits`), and whole numbers are multiplied and accumulated.
    """
    if isinstance(weight, AnyStrips):
        rows = x.reshape(-1, x.shape[-1]).astype(weight.dtype if isinstance(weight, Strips) else jnp.float32)
        return _by_strips(rows, weight).reshape(*x.shape[:-1], *weight.shape[:-1])
    return contract(x, weight, weight.ndim - 1)


def contract(x: Float[Array, "*rows i"], weight: Array | QuantArray, axis: int) -> Float[Array, "..."]:
    """`matmul` over axis `axis` of the weight, the first or the last."""
    rows = x.reshape(-1, x.shape[-1]).astype(weight.dtype)
    if not isinstance(weight, QuantArray):
        product = _dot(rows, weight, axis)
    elif jax.default_backend() == "cpu" and axis == 0 and not is_spread():
        product = _by_blocks(rows, weight)
    else:
        product = _rounded_dot(rows, weight, axis)
    return product.reshape(*x.shape[:-1], *product.shape[1:])


@jax.custom_vjp
def _by_strips(rows: Float[Array, "r i"], strips: AnyStrips) -> Float[Array, "r o"]:
    """The machine code has no gradient: where one is taken, XLA multiplies."""
    if isinstance(strips, Strips):
        made = native.product(rows, strips.data)
    else:
        made = native.rounded_product(rows, strips.words, strips.scales, strips.bits)
    return made[:, : strips.size // strips.shape[-1]]


_by_strips.defvjp(
    lambda rows, strips: jax.vjp(lambda rows, strips: _dot(rows, _as_matrix(strips), 1), rows, strips),
    lambda back, gradient: back(gradient),
)


def _as_matrix(strips: AnyStrips) -> Float[Array, "o i"]:
    return dense(out_of_strips(strips)).reshape(-1, strips.shape[-1])


def _dot(rows: Float[Array, "r i"], weight: Array, axis: int) -> Float[Array, "..."]:
    alone = weight.dtype == jnp.bfloat16 and rows.shape[0] == 1 and jax.default_backend() == "cpu"
    if alone:  # a single bfloat16 row falls off XLA:CPU's fast path, two do not
        rows = jnp.concatenate([rows, rows])
    if weight.dtype == jnp.float32 and axis == weight.ndim - 1 and jax.default_backend() == "cpu" and not is_spread():
        return _as_stored_dot(rows, weight.reshape(-1, weight.shape[-1])).reshape(-1, *weight.shape[:-1])
    product = _added_up(rows, weight, 1, axis)
    return product[:1] if alone else product


def _as_stored_dot(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    """`rows @ weight.T` in float32 on CPU."""
    count = rows.shape[0]
    if 1 < count <= FEW_ROWS[-1]:
        return _weight_first(rows, weight)
    return _tall_dot(rows, weight) if weight.shape[0] > weight.shape[1] else _added_up(rows, weight, 1, 1)


def _weight_first(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    """`(weight @ rows.T).T`, of as many rows as `FEW_ROWS` has next; without the barriers XLA would turn it round."""
    count = rows.shape[0]
    wanted = next(few for few in FEW_ROWS if few >= count)
    columns = jax.lax.optimization_barrier(jnp.pad(rows, ((0, wanted - count), (0, 0))).T)
    return jax.lax.optimization_barrier(_added_up(weight, columns, 1, 0)).T[:count]


def _added_up(x: Float[Array, "..."], y: Float[Array, "..."], x_axis: int, y_axis: int) -> Float[Array, "..."]:
    return jax.lax.dot_general(
        x, y, (((x_axis,), (y_axis,)), ((), ())), precision=precision(y.dtype), preferred_element_type=jnp.float32
    )


@jax.custom_vjp
def _tall_dot(rows: Float[Array, "r i"], weight: Float[Array, "o i"]) -> Float[Array, "r o"]:
    """`rows @ weight.T` of a weight with more outputs than inputs. Its gradient is made as `[i, o]` and turned.

    It has no forward-mode derivative. XLA:CPU would make `[o, i]` of the many rows, which takes it about a third longer
    (`benchmarks/products.py`).
    """
    return _added_up(rows, weight, 1, 1)


def _tall_forward(rows: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _tall_dot(rows, weight), (rows, weight)


def _tall_backward(kept: tuple[Array, Array], gradient: Float[Array, "r o"]) -> tuple[Array, Array]:
    rows, weight = kept
    turned = jax.lax.optimization_barrier(_added_up(rows, gradient, 0, 0))  # or XLA puts the turn back into the product
    return _added_up(gradient, weight, 1, 0), turned.T


_tall_dot.defvjp(_tall_forward, _tall_backward)


def _rounded_dot(rows: Float[Array, "r i"], weight: QuantArray, axis: int) -> Float[Array, "..."]:
    if axis == weight.ndim - 1 and _is_for_kernel(rows, weight):
        return _by_kernel(rows, weight)
    return _by_xla(rows, weight, axis)


def _by_xla(rows: Float[Array, "r i"], weight: QuantArray, axis: int) -> Float[Array, "..."]:
    floats, scales = factors(weight, axis)
    product = _dot(rows, floats, axis)
    return product if scales is None else product * scales[None]


@jax.custom_vjp
def _by_kernel(rows: Float[Array, "r i"], weight: QuantArray) -> Float[Array, "r ..."]:
    """The kernel has no gradient: where one is taken, XLA multiplies."""
    levels, scales = (part.reshape(-1, part.shape[-1]) for part in jax.tree.leaves(weight))
    return int4_gpu.product(rows, levels, scales).reshape(-1, *weight.shape[:-1])


_by_kernel.defvjp(
    lambda rows, weight: jax.vjp(functools.partial(_by_xla, axis=weight.ndim - 1), rows, weight),
    lambda back, gradient: back(gradient),
)


def _is_for_kernel(rows: Float[Array, "r i"], weight: QuantArray) -> bool:
    """Whether `int4_gpu` was asked for and takes it; of the reasons against, many rows is no news."""
    if weight.bits != 4 or not int4_gpu.is_asked():
        return False
    *_, inputs = weight.shape
    if is_spread():
        reason: str | None = "the program is over several devices"
    elif weight.dtype != jnp.bfloat16:
        reason = f"weights are multiplied in {weight.dtype}"
    else:
        reason = int4_gpu.refusal(weight.size // inputs, inputs, weight.scales.shape[-1])
    if reason is not None:
        int4_gpu.tell(reason)
    return reason is None and 0 < rows.shape[0] <= int4_gpu.MOST_ROWS


def factors(weight: Array | QuantArray, axis: int) -> tuple[Array, Array | None]:
    """What rows are multiplied with over `axis`, and what the product is multiplied with afterwards, if anything.

    With one scale for each output the levels themselves are multiplied, exact in bfloat16, and the product is scaled.
    """
    if not isinstance(weight, QuantArray) or weight.scales.shape[axis] > 1:
        return dense(weight), None
    return weight.levels.astype(weight.dtype), jnp.squeeze(weight.scales, axis)


def _by_blocks(rows: Float[Array, "r i"], weight: QuantArray) -> Float[Array, "..."]:
    """Block after block of columns of a weight `[in, ..]`."""
    columns = jax.tree.map(lambda part: part.reshape(part.shape[0], -1), weight)
    width = columns.shape[1]
    block = min(max(width // 16 // SMALLEST_BLOCK * SMALLEST_BLOCK, SMALLEST_BLOCK), LARGEST_BLOCK)

    def part(start: Array | int, size: int) -> Float[Array, "r o"]:
        taken = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis=1), columns)
        return _rounded_dot(rows, taken, 0)

    def one(i: Array, made: Float[Array, "r o"]) -> Float[Array, "r o"]:
        return jax.lax.dynamic_update_slice_in_dim(made, part(i * block, block), i * block, axis=1)

    whole = width - width % block
    made = jnp.zeros((rows.shape[0], whole), jnp.float32)
    if whole:
        made = jax.lax.fori_loop(0, whole // block, one, made)
    if whole < width:
        made = jnp.concatenate([made, part(whole, width - whole)], axis=1)
    return made.reshape(rows.shape[0], *weight.shape[1:])
