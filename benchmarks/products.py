"""What does a product of few rows with a weight take: float weights, rounded ones, in blocks and whole? And a gradient?

python benchmarks/products.py                    # microseconds on this machine
python benchmarks/products.py --topology v5e:2x2 # bytes that a TPU reads for each number, by its compiler (libtpu)
"""

import argparse
import os
import time
from collections.abc import Callable
from unittest import mock

os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-4"}

import jax  # noqa: E402  # after what libtpu would ask the machine for
import jax.numpy as jnp  # noqa: E402
from common import begin, table  # noqa: E402
from jax.experimental import topologies  # noqa: E402

import eagle_jax  # noqa: E402, F401  # sets XLA's flags
from eagle_jax import ops  # noqa: E402
from eagle_jax.ops import quantized as quant  # noqa: E402
from eagle_jax.workarounds import loop_options  # noqa: E402

SHIPPED = ((256, 512), (256, 1536), (256, 2048), (768, 256))  # of the shipped target: heads, MLP, vocabulary, MLP back
LARGE, LARGE_ROWS = (2048, 8192), (1, 4, 8)
ROWS = (1, 2, 4, 8, 64)
WIDER = ((256, 2048), (512, 2048), (768, 2304), (1024, 3072), (2048, 2048))
COLD = 64 * 2**20  # bytes of weights taken in turn, more than a core keeps
MANY = 2048
WEIGHTS, TURNS, ROUNDS = 4, 20, 15


def product(rows: jax.Array, weight: jax.Array | quant.QuantArray) -> jax.Array:
    """With a weight `[in, out]`, as decoding has most of them on CPU."""
    return ops.matmul(rows, ops.Transposed(weight))


def as_stored(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """With a weight `[out, in]`, as decoding has wide ones on CPU."""
    return ops.matmul(rows, weight)


def ours(rows: jax.Array, weight: ops.PackedWeight) -> jax.Array:
    """With a packed weight, as decoding has it on a CPU."""
    return ops.matmul(rows, weight)


def whole(rows: jax.Array, weight: quant.QuantArray) -> jax.Array:
    """A rounded weight made floats at once, in every pass anew, which blocks avoid."""
    rows, weight = jax.lax.optimization_barrier((rows, weight))
    return ops.matmul(rows, ops.Transposed(quant.dense(weight)))


def weights(shape: tuple[int, int], dtype: jnp.dtype, rounding: quant.Rounding | None, count: int = WEIGHTS) -> list:
    """Several of one shape `[in, out]`, so that none stays in the core's cache for being the only one."""
    made = [jax.random.normal(key, shape[::-1], dtype) for key in jax.random.split(jax.random.key(0), count)]
    turned = [weight if rounding is None else quant.quantise(weight, rounding, dtype) for weight in made]
    return jax.block_until_ready([jax.tree.map(jnp.transpose, weight) for weight in turned])


def loop(function: Callable, rows: jax.Array, several: list, turns: int = TURNS) -> Callable[[], object]:
    """`function` with every weight in turn, many times over, in one compiled loop; each product waits for the last."""

    def once(_: int, rows: jax.Array) -> jax.Array:
        for weight in several:
            made = function(rows, weight)
            rows = rows + (1e-6 * jnp.sum(made, axis=-1, keepdims=True)).astype(rows.dtype)
        return rows

    run = jax.jit(
        lambda rows, several: jax.lax.fori_loop(0, turns, lambda i, x: once(i, x), rows),
        compiler_options=loop_options(),
    )
    compiled = run.lower(rows, several).compile()
    return lambda: jax.block_until_ready(compiled(rows, several))


def microseconds(cases: dict[tuple, Callable[[], object]], count: int = TURNS * WEIGHTS) -> dict[tuple, float]:
    """Of one product in each case, in turns; the least of several, since other work only ever adds."""
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for case, run in cases.items():
            start = time.perf_counter()
            run()
            least[case] = min(least[case], (time.perf_counter() - start) / count * 1e6)
    return least


def layouts() -> None:
    """Weights `[in, out]` against `[out, in]`, none of them in the core's cache, in bfloat16."""
    lines = []
    for shape in WIDER:
        count = COLD // (2 * shape[0] * shape[1])
        turned = weights(shape, jnp.bfloat16, None, count)
        ways = {"[in, out]": (product, turned), "[out, in]": (as_stored, [weight.T for weight in turned])}
        found = microseconds(
            {
                (rows, name): loop(function, jnp.ones((rows, shape[0]), jnp.bfloat16), several, turns=1)
                for rows in (4, 64)
                for name, (function, several) in ways.items()
            },
            count=count,
        )
        lines.append(["{} x {}".format(*shape), *(f"{found[case]:.0f} us" for case in found)])
    header = ["bfloat16", *(f"{rows} rows, {name}" for rows in (4, 64) for name in ("[in, out]", "[out, in]"))]
    print("\n" + table(header, lines))


def on_this_machine() -> None:
    cases = {}
    for shape in SHIPPED:
        floats = weights(shape, jnp.bfloat16, None)
        packed = [ops.pack_for_backend(weight.T) for weight in floats]
        for rows in ROWS:
            given = jnp.ones((rows, shape[0]), jnp.bfloat16)
            cases |= {(rows, shape): loop(product, given, floats), (rows, shape, "ours"): loop(ours, given, packed)}
    found = microseconds(cases)
    ways = [(shape, *way) for shape in SHIPPED for way in ((), ("ours",))]
    header = ["rows, bfloat16", *(f"{i} x {o}, {way[0] if way else 'XLA'}" for (i, o), *way in ways)]
    print(table(header, [[rows, *(f"{found[rows, *way]:.0f} us" for way in ways)] for rows in ROWS]))

    floats, rounded = (weights(LARGE, jnp.float32, rounding) for rounding in (None, quant.Rounding(8)))
    ways = {
        "floats, [in, out]": (product, floats),
        "floats, [out, in]": (as_stored, [weight.T for weight in floats]),
        "int8, in blocks": (product, rounded),
        "int8, whole": (whole, rounded),
    }
    found = microseconds(
        {
            (rows, name): loop(function, jnp.ones((rows, LARGE[0])), several)
            for rows in LARGE_ROWS
            for name, (function, several) in ways.items()
        }
    )
    print(
        "\n"
        + table(
            [f"rows, float32, {LARGE[0]} x {LARGE[1]}", *ways],
            [[rows, *(f"{found[rows, name] / 1000:.1f} ms" for name in ways)] for rows in LARGE_ROWS],
        )
    )


def gradients() -> None:
    """Of weights `[out, in]` after many rows, as in training: as XLA makes them, and as `ops.linear` has them made."""

    def tall(rows: jax.Array, gradient: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.vjp(lambda w: ops.matmul(rows, w), weight)[1](gradient)[0]

    def plain(rows: jax.Array, gradient: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.vjp(lambda w: rows @ w.T, weight)[1](gradient)[0]

    cases: dict[tuple, Callable[[], object]] = {}
    for shape in SHIPPED[1:3]:
        given = jnp.ones((MANY, shape[0])), jnp.ones((MANY, shape[1])), jnp.ones(shape[::-1])
        for name, function in {"as XLA makes it": plain, "[in, out], turned": tall}.items():
            compiled = jax.jit(function).lower(*given).compile()
            cases[shape, name] = lambda run=compiled, given=given: [
                jax.block_until_ready(run(*given)) for _ in range(TURNS * WEIGHTS)
            ]
    found = microseconds(cases)
    names = dict.fromkeys(name for _, name in cases)
    rows = [[f"{i} x {o}", *(f"{found[(i, o), name] / 1000:.1f} ms" for name in names)] for i, o in SHIPPED[1:3]]
    print("\n" + table([f"gradient of a weight, {MANY} rows, float32", *names], rows))


def on_a_tpu(topology: str) -> None:
    inputs, outputs = 4096, 14336
    device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    place = jax.sharding.SingleDeviceSharding(device)
    kinds = {
        "floats": None,
        "int8": quant.Rounding(8),
        "int4, groups of 32": quant.Rounding(4, 32),
        "int4, groups of 128": quant.Rounding(4, 128),
    }

    def bytes_a_number(rounding: quant.Rounding | None, axis: int) -> str:
        shape = (outputs, inputs) if axis else (inputs, outputs)
        weight = jax.ShapeDtypeStruct((outputs, inputs), jnp.bfloat16)
        if rounding is not None:
            weight = jax.eval_shape(lambda w: quant.quantise(w, rounding, jnp.bfloat16), weight)
        turn = (lambda x: x.shape) if axis else (lambda x: x.shape[::-1])
        weight = jax.tree.map(lambda x: jax.ShapeDtypeStruct(turn(x), x.dtype, sharding=place), weight)
        assert weight.shape == shape
        row = jax.ShapeDtypeStruct((1, inputs), jnp.bfloat16, sharding=place)
        compiled = jax.jit(lambda x, w: ops.matmul(x, w if axis else ops.Transposed(w))).lower(row, weight).compile()
        return f"{compiled.cost_analysis()['bytes accessed'] / inputs / outputs:.2f}"

    with mock.patch("jax.default_backend", return_value="tpu"):
        lines = [[name, bytes_a_number(kind, 0), bytes_a_number(kind, 1)] for name, kind in kinds.items()]
    print(table(["bytes a number, one row", "[in, out]", "[out, in]"], lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", help="a TPU's, such as v5e:2x2")
    topology = parser.parse_args().topology
    if topology is not None:
        return on_a_tpu(topology)
    on_this_machine()
    layouts()
    gradients()


if __name__ == "__main__":
    begin(main)
