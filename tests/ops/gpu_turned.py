"""`benchmarks/compile_only/gpu_loop.py` for int4 weights that lie as a TPU likes them: what it has to refuse."""

import pathlib
import sys
from typing import Any
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).parents[2]))

import jax
import jax.numpy as jnp

from benchmarks.compile_only import gpu_loop
from eagle_jax.ops import Transposed, packing


def transposed(weight: Any) -> Transposed:
    return Transposed(jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), weight))


if __name__ == "__main__":
    sys.argv += ["--layers", "1", "--quantize", "int4", "--attention", "xla", "--nodes", "0"]
    with mock.patch.object(packing, "_for_xla", transposed):
        sys.exit(gpu_loop.main())
