"""What does a product with rounded weights take on a CPU, read from memory, and what do rows of 8 bits save?

    python benchmarks/rounded.py

Prints the least time of one product, of as many weights in turn as no cache keeps.
"""

import argparse
import os
from unittest import mock

import jax
import jax.numpy as jnp
from common import begin, table
from products import loop, microseconds

from eagle_jax.ops import matmul, pack_for_backend
from eagle_jax.ops import quantized as quant
from eagle_jax.ops.dispatch import ACTIVATIONS

SIZE, COUNT = 2048, 40
ROWS = (1, 2, 4, 6, 8, 16, 64)
ROUNDINGS = {
    "bfloat16": None,
    "int8": quant.Rounding(8),
    "int4": quant.Rounding(4, 32),
    "int4-128": quant.Rounding(4, 128),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    floats = [jax.random.normal(key, (SIZE, SIZE), jnp.bfloat16) for key in jax.random.split(jax.random.key(0), COUNT)]
    cases = {}
    for name, rounding in ROUNDINGS.items():
        several = [one if rounding is None else quant.quantise(one, rounding, one.dtype) for one in floats]
        packed = jax.block_until_ready([pack_for_backend(one) for one in several])
        for bits in (16,) if rounding is None else (16, 8):
            with mock.patch.dict(os.environ, {ACTIVATIONS: f"int{bits}"}):
                for rows in ROWS:
                    cases[rows, name, bits] = loop(matmul, jnp.ones((rows, SIZE), jnp.float32), packed, turns=1)
    found = microseconds(cases, count=COUNT)
    ways = list(dict.fromkeys((name, bits) for _, name, bits in cases))
    header = ["rows", *(name if name == "bfloat16" else f"{name}, rows of {bits} bits" for name, bits in ways)]
    print(table(header, [[rows, *(f"{found[rows, *way]:.0f} us" for way in ways)] for rows in ROWS]))


if __name__ == "__main__":
    begin(main)
