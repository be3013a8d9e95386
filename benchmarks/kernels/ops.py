"""What do the operations of a step take: products with weights, top-k, attention, and a weight's gradient?

    python -m benchmarks.kernels.ops products    # few rows: XLA, our own code, both layouts, quantized
    python -m benchmarks.kernels.ops quantized   # quantized weights read from memory, rows of 16 and 8 bits (CPU)
    python -m benchmarks.kernels.ops integers    # fewer of these, in a minute
    python -m benchmarks.kernels.ops gradients   # of a weight after many rows, as in training
    python -m benchmarks.kernels.ops top_k       # of a few rows, with log-probabilities: our own code and XLA
    python -m benchmarks.kernels.ops attention   # the backends of this device, over short and long caches
    python -m benchmarks.kernels.ops tpu         # bytes that a TPU reads for each number, by its compiler (libtpu)

Every time is the least of several, of cases that take turns.
"""

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from eagle_jax import ops
from eagle_jax.decoding.scores import Scores
from eagle_jax.ops import quantized as quant
from eagle_jax.ops.dispatch import ACTIVATIONS
from eagle_jax.workarounds import loop_options

SHIPPED = ((256, 512), (256, 1536), (256, 2048), (768, 256))  # of the shipped target: heads, MLP, vocabulary, MLP back
WIDER = ((256, 2048), (512, 2048), (768, 2304), (1024, 3072), (2048, 2048))
LARGE = (2048, 8192)
SQUARE, SQUARES = (2048, 2048), 40
COLD = 64 * 2**20  # bytes of weights taken in turn, more than a core keeps
CALLS, ROUNDS = 80, 15  # in one timing, and timings
QUANT_TYPES = {"floats": None, "int8": quant.QuantType(8)}
QUANT_TYPES |= {"int4": quant.QuantType(4, 32), "int4-128": quant.QuantType(4, 128)}
# Of files: what they have besides. Scales are float32 here, where those of Q4_1 are float16.
PUBLISHED = {
    "Q4_1, Q4_K": quant.QuantType(4, 32, has_minima=True),
    "AWQ": quant.QuantType(4, 128, has_minima=True),
    "GPTQ, sorted": quant.QuantType(4, 128, is_ordered=True),
    "Q5_K": quant.QuantType(8, 32, has_minima=True),
    "Q6_K": quant.QuantType(8, 16),
    "IQ4_NL": quant.QuantType(4, 32, "iq4_nl"),
    "MXFP4": quant.QuantType(4, 32, "e2m1"),
    "FP8, blocks of 128": quant.QuantType(8, 128, quant.E4M3),
    "FP8, by output": quant.QuantType(8, None, quant.E4M3),
}
ROW_COUNTS = (1, 2, 4, 6, 8, 16, 64)
ATTENTION = ((1, 2048, 512), (1, 8192, 8192), (16, 2048, 2048))  # requests, slots, used slots
SWEPT = 200 * 10**6  # bytes of caches that are read in turn, more than a device keeps beside its cores

Timed = tuple[Callable[[], object], int]  # a program, and how many calls of the operation it makes


def microseconds(cases: dict[Any, Timed]) -> dict[Any, float]:
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for case, (run, calls) in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            least[case] = min(least[case], (time.perf_counter() - start) / calls * 1e6)
    return least


def crossed(title: str, corner: str, rows: Sequence[Any], cases: dict[Any, Timed]) -> None:
    """A table of microseconds; keys are (row, column)."""
    times = microseconds(cases)
    columns = list(dict.fromkeys(column for _, column in cases))
    show(f"{title}, us", (corner, *columns), [(row, *(times[row, column] for column in columns)) for row in rows])


def chained(rows: int, inputs: int, dtype: Any, weights: list[Any], matmul: Callable[..., jax.Array]) -> Timed:
    """Products with every weight in turn, many times over, in one loop; each waits for the one before."""
    turns = max(1, CALLS // len(weights))

    def all_of(_: int, x: jax.Array, weights: list[Any]) -> jax.Array:
        for weight in weights:
            x = x + (1e-6 * jnp.sum(matmul(x, weight), axis=-1, keepdims=True)).astype(x.dtype)
        return x

    def loop(x: jax.Array, weights: list[Any]) -> jax.Array:
        return jax.lax.fori_loop(0, turns, lambda i, x: all_of(i, x, weights), x)

    x = jnp.ones((rows, inputs), dtype)
    run = jax.jit(loop, compiler_options=loop_options()).lower(x, weights).compile()
    return lambda: run(x, weights), turns * len(weights)


def random(shape: tuple[int, int], dtype: Any, count: int) -> list[jax.Array]:
    """Weights `[out, in]` of a shape (in, out)."""
    return [jax.random.normal(key, shape[::-1], dtype) for key in jax.random.split(jax.random.key(0), count)]


def transposed(x: jax.Array, weight: Any) -> jax.Array:
    """With a weight that lies `[in, out]`."""
    return ops.matmul(x, ops.Transposed(weight))


def turned(weights: list[Any]) -> list[Any]:
    return jax.block_until_ready([jax.tree.map(jnp.transpose, weight) for weight in weights])


def products() -> None:
    counts = (1, 2, 4, 8, 64)
    cases: dict[Any, Timed] = {}
    for (inputs, outputs), rows in itertools.product(SHIPPED, counts):
        weights = random((inputs, outputs), jnp.bfloat16, 4)
        packed = [ops.pack_for_backend(weight) for weight in weights]
        shape = f"{inputs} x {outputs}"
        cases[rows, f"{shape}, XLA"] = chained(rows, inputs, jnp.bfloat16, turned(weights), transposed)
        cases[rows, f"{shape}, ours"] = chained(rows, inputs, jnp.bfloat16, packed, ops.matmul)
    crossed("Products in bfloat16", "rows", counts, cases)

    weights = random(LARGE, jnp.float32, 4)
    int8 = turned([quant.quantize(weight, quant.QuantType(8), jnp.float32) for weight in weights])
    ways: dict[str, tuple[Callable[..., jax.Array], list[Any]]] = {
        "floats, [in, out]": (transposed, turned(weights)),
        "floats, [out, in]": (ops.matmul, weights),
        "int8": (transposed, int8),
    }
    cases = {
        (rows, name): chained(rows, LARGE[0], jnp.float32, several, matmul)
        for rows in (1, 4, 8)
        for name, (matmul, several) in ways.items()
    }
    crossed(f"Products by XLA in float32, {LARGE[0]} x {LARGE[1]}", "rows", (1, 4, 8), cases)

    cases = {}
    for (inputs, outputs), rows in itertools.product(WIDER, (4, 64)):
        weights = random((inputs, outputs), jnp.bfloat16, COLD // (2 * inputs * outputs))
        shape = f"{inputs} x {outputs}"
        cases[shape, f"{rows} rows, [in, out]"] = chained(rows, inputs, jnp.bfloat16, turned(weights), transposed)
        cases[shape, f"{rows} rows, [out, in]"] = chained(rows, inputs, jnp.bfloat16, weights, ops.matmul)
    crossed("Products by XLA in bfloat16, weights from memory", "weight", [f"{i} x {o}" for i, o in WIDER], cases)


def quantized(kinds: Sequence[str] = (*QUANT_TYPES, *PUBLISHED), counts: Sequence[int] = ROW_COUNTS) -> None:
    weights = random(SQUARE, jnp.bfloat16, SQUARES)
    cases: dict[Any, Timed] = {}
    for name in kinds:
        quant_type = (QUANT_TYPES | PUBLISHED)[name]
        several = [one if quant_type is None else of_type(one.shape, quant_type) for one in weights]
        packed = jax.block_until_ready([ops.pack_for_backend(one) for one in several])
        floats = quant_type is None or quant_type.levels == quant.E4M3
        own = 8 if quant_type is not None and quant_type.bits == 4 else 16
        both = (16, 8) if name in QUANT_TYPES else (own,)
        for bits, rows in itertools.product((16,) if floats else both, counts):
            with mock.patch.dict(os.environ, {ACTIVATIONS: f"int{bits}"}):
                column = ("bfloat16" if quant_type is None else name) if floats else f"{name}, {bits}-bit rows"
                cases[rows, column] = chained(rows, SQUARE[0], jnp.float32, packed, ops.matmul)
    crossed(f"A product of {SQUARE[0]} x {SQUARE[1]} out of {SQUARES}", "rows", counts, cases)


def integers() -> None:
    quantized(("int8", "int4", "int4-128"), (1, 4, 6, 16))


def of_type(shape: tuple[int, ...], quant_type: quant.QuantType) -> quant.QuantArray:
    """A weight of this type; what its numbers are does not matter."""
    filled = jax.tree.map(jnp.ones_like, quant.zeros(quant_type, shape, jnp.bfloat16))
    return dataclasses.replace(filled, codes=filled.codes.astype(quant_type.code_dtype))


def gradients() -> None:
    cases: dict[Any, Timed] = {}
    for inputs, outputs in SHIPPED[1:3]:
        arrays = jnp.ones((2048, inputs)), jnp.ones((2048, outputs)), jnp.ones((outputs, inputs))
        for name, matmul in {"XLA": lambda x, w: x @ w.T, "[in, out], transposed": ops.matmul}.items():
            run = jax.jit(lambda x, g, w, matmul=matmul: jax.vjp(lambda w: matmul(x, w), w)[1](g)[0])
            run = run.lower(*arrays).compile()
            cases[f"{inputs} x {outputs}", name] = (lambda run=run, arrays=arrays: run(*arrays)), 1
    crossed("Gradient of a weight, 2048 rows, float32", "weight", [f"{i} x {o}" for i, o in SHIPPED[1:3]], cases)


def top_k() -> None:
    keys = list(itertools.product((2048, 32_000, 128_256), (1, 10, 60)))
    cases: dict[Any, Timed] = {}
    for vocabulary, rows in keys:
        logits = 3 * jax.random.normal(jax.random.key(rows), (rows, vocabulary))
        for name, function in {"argmax": ops.argmax, "top 10": lambda x: Scores(x, 2.0).best(10)}.items():
            for by, backend in {"ours": "cpu", "XLA": "xla"}.items():
                with mock.patch.dict(os.environ, {ops.VARIABLE: backend}):
                    # a function of its own: what is traced for one backend is not taken for the other
                    program = jax.jit(lambda x, f=function: f(x), compiler_options=loop_options())
                    run = program.lower(logits).compile()
                cases[f"{vocabulary:,}, {rows}", f"{name}, {by}"] = (lambda run=run, x=logits: run(x)), 1
    crossed("The largest of rows", "vocabulary, rows", [f"{vocabulary:,}, {rows}" for vocabulary, rows in keys], cases)


def attention() -> None:
    """In the shapes of Llama 3.1 8B: 8 kv heads of 128, four queries each. Calls go through so many caches that none is
    still near the device's cores when its turn comes again, as in a model, whose weights are read in between.
    """
    device = jax.default_backend()
    sizes, swept = (((1, 256, 100), (16, 4096, 300)), SWEPT // 100) if device == "cpu" else (ATTENTION, SWEPT)
    rows: list[tuple[object, ...]] = []
    for (requests, slots, used), nodes in itertools.product(sizes, (1, 60)):
        if device == "cpu" and requests * nodes > 60:  # minutes of arithmetic
            continue
        keys = map(jax.random.key, itertools.count())

        def drawn(heads: int, rows: int, requests: int = requests, keys: Iterator[jax.Array] = keys) -> jax.Array:
            return jax.random.normal(next(keys), (requests, heads, rows, 128), jnp.bfloat16)

        visible = jnp.broadcast_to(jnp.tril(jnp.ones((nodes, nodes), bool)), (requests, nodes, nodes))
        q, call = drawn(32, nodes), ((drawn(8, nodes), drawn(8, nodes)), visible, jnp.full(requests, used, jnp.int32))
        caches = [(drawn(8, slots), drawn(8, slots)) for _ in range(math.ceil(swept / (4096 * requests * used)))]
        times: list[Any] = []
        for backend in ("xla", "prefix", device):
            with mock.patch.dict(os.environ, {ops.VARIABLE: f"tree_attention:{backend}"}):
                try:
                    times.append(microseconds({"": through(q, call, caches)})[""])
                except Exception as error:  # a kernel that fails is a result
                    times.append(f"{type(error).__name__}: {error}".splitlines()[0][:100])
        speedup = times[0] / times[-1] if all(isinstance(one, float) for one in times) else None
        rows.append((f"{nodes} nodes, {requests} x {used} of {slots} slots", *times, speedup))
        show("Attention of one layer, us", ("attention", "XLA", "XLA, a prefix", f"kernel ({device})", "speedup"), rows)


def through(q: jax.Array, call: tuple[Any, ...], caches: list[ops.KV]) -> Timed:
    """Attention over every cache in turn, each call with the output of the one before as queries."""
    fresh, visible, length = call
    rounds = math.ceil(CALLS / len(caches))

    def once(q: jax.Array, caches: list[ops.KV]) -> jax.Array:
        for prefix in caches:
            q = ops.tree_attention(q, fresh, visible, prefix, length).astype(q.dtype)
        return q

    program = jax.jit(lambda q, caches: jax.lax.fori_loop(0, rounds, lambda _, q: once(q, caches), q))
    run = program.lower(q, caches).compile()
    return lambda: run(q, caches), rounds * len(caches)


def tpu() -> None:
    inputs, outputs = 4096, 14336
    sharding = jax.sharding.SingleDeviceSharding(shapes.tpu_mesh("v5e:2x2", (1, 1)).mesh.devices.item())

    def bytes_a_number(quant_type: quant.QuantType | None, as_stored: bool, rows: int = 1) -> tuple[float, float]:
        """Bytes that are read and written, and temporary memory, for each number of the weight."""
        weight = jax.ShapeDtypeStruct((outputs, inputs), jnp.bfloat16)
        if quant_type is not None:
            weight = jax.eval_shape(lambda: quant.zeros(quant_type, (outputs, inputs), jnp.bfloat16))
        step = 1 if as_stored else -1
        weight = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[::step], x.dtype, sharding=sharding), weight)
        x = jax.ShapeDtypeStruct((rows, inputs), jnp.bfloat16, sharding=sharding)
        program = jax.jit(lambda x, w: ops.matmul(x, w) if as_stored else transposed(x, w)).lower(x, weight).compile()
        moved, held = program.cost_analysis()["bytes accessed"], program.memory_analysis().temp_size_in_bytes
        return moved / inputs / outputs, held / inputs / outputs

    with shapes.platform("tpu"):
        table = [
            (name, bytes_a_number(one, False)[0], bytes_a_number(one, True)[0], bytes_a_number(one, False, 8)[1])
            for name, one in (QUANT_TYPES | PUBLISHED).items()
        ]
    headings = "weights", "[in, out], one row", "[out, in], one row", "temporary memory, [in, out], 8 rows"
    show(f"Bytes a number, {inputs} x {outputs}", headings, table)


def main() -> None:
    own = parser(__doc__)
    questions = {run.__name__: run for run in (products, quantized, integers, gradients, top_k, attention, tpu)}
    own.add_argument("question", choices=questions)
    questions[own.parse_args().question]()


if __name__ == "__main__":
    begin(main)
