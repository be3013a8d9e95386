"""Compiles the kernel for an H200 that is not there, for every case of the contract and for shapes of an 8B target.

A process of its own, since it needs a CUDA plugin that the other tests are better without: `python gpu_cases.py`.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
from attention_cases import CASES, made

sys.path.append(str(pathlib.Path(__file__).parents[2]))

from benchmarks.compile_only import gpu_loop
from eagle_jax.ops import AttentionCall
from eagle_jax.ops.gpu import tree_attention as pallas_gpu


def of_8b(requests: int, nodes: int, slots: int = 2048) -> AttentionCall:
    """A case of shapes: 8 kv heads of 128, four queries each, bfloat16."""

    def rows(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((requests, 8, count, 128), jnp.bfloat16)

    return AttentionCall(
        q=rows(4 * nodes),
        fresh=(rows(nodes), rows(nodes)),
        visible=jax.ShapeDtypeStruct((requests, nodes, nodes), jnp.bool_),
        prefix=(rows(slots), rows(slots)),
        length=jax.ShapeDtypeStruct((requests,), jnp.int32),
        first=None,
        softcap=None,
    )


def main() -> None:
    cases = {name: made(asked) for name, asked in CASES.items()}
    cases |= {
        f"8B, {requests} x {nodes} nodes": of_8b(requests, nodes) for requests, nodes in ((1, 1), (1, 60), (16, 60))
    }
    for name, case in cases.items():
        with gpu_loop.as_if_there():
            program = jax.jit(pallas_gpu.attend).lower(gpu_loop.on_gpu(case)).compile()
        print(program.as_text().count("triton") > 0, name)


if __name__ == "__main__":
    main()
