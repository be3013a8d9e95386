"""`gpu_compile.py` for int4 weights that lie as a TPU likes them: what it has to refuse."""

import pathlib
import sys
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import gpu_compile
import jax
import jax.numpy as jnp

from eagle_jax.models import layout


def turned(linear: layout.Params) -> layout.Params:
    if "weight" not in linear:
        return linear
    return linear | {"kernel": jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), linear.pop("weight"))}


if __name__ == "__main__":
    sys.argv += ["--layers", "1", "--quantize", "int4", "--attention", "xla", "--nodes", "0"]
    with mock.patch.object(layout, "_turned", turned):
        gpu_compile.main()
