"""Do prefill and decoding loop compile for the devices that Colab lends, in the dtype that `load` chooses there?

T4, L4, A100, and one chip of a TPU v5e or v6e, none of which is here: NVIDIA's and Google's compilers are asked, as by
`benchmarks.compile_only.used_slots`. "on top" is what a program needs besides weights and caches, and "copied" are
matrices that a step writes to memory in another type. With `--ops` the operations of a backend are asked for, such as
`gpu` for our kernels; what does not compile is printed with the reason. Exits with 1 if anything is, or is copied.

    PYTHONPATH=build/cuda:build/libtpu python -m benchmarks.compile_only.colab
    PYTHONPATH=build/cuda python -m benchmarks.compile_only.colab --devices t4,l4,a100 --ops tree_attention:gpu
"""

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import gpu_loop, shapes
from benchmarks.compile_only.launches import launches
from benchmarks.compile_only.used_slots import chip, compiled_loop, compiled_prefill
from eagle_jax.loading.dtypes import dtype_of
from eagle_jax.ops import VARIABLE


def main() -> int:
    own = parser(__doc__)
    own.add_argument("--devices", default="t4,l4,a100,v5e,v6e", help="%(default)s")
    own.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models` (%(default)s)")
    own.add_argument("--layers", type=int, default=2, help="of the target; all layers are alike (%(default)s)")
    own.add_argument("--slots", type=int, default=2048, help="of the cache (%(default)s)")
    own.add_argument("--nodes", type=int, default=60, help="of the tree (%(default)s)")
    own.add_argument("--ops", default="xla", help="as EAGLE_JAX_OPS (%(default)s)")
    options = own.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the plugins compile; their devices are not there to be started
    os.environ[VARIABLE] = options.ops
    rows = [(name, *row) for name in options.devices.split(",") for row in programs(name, options)]
    columns = ("device", "dtype", "tree", "program", "compiles", "kernels", "on top, MB", "copied")
    show(f"{options.target}, {options.layers} layers, {options.slots} slots, {options.ops}", columns, rows)
    return int(any(row[4] != "yes" or row[-1] for row in rows))


def programs(name: str, options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Prefill and loop, plainly and with a tree, of one request."""
    config, head = shapes.configs(options.target, options.layers)
    for nodes in (0, options.nodes):
        with chip(name):
            dtype = dtype_of(None) or jnp.bfloat16  # which files have
            how: dict[str, Any] = dict(requests=1, slots=options.slots, quantize=None, dtype=dtype)
            of = shapes.arguments(config, head, shapes.policy_of(nodes), shapes.one_device(), **how)
        what = jnp.dtype(dtype).name, f"{nodes} nodes" if nodes else "plain"
        *read, _ = outcome(compiled_prefill, name, of, options.slots)
        yield *what, "prefill", *read, ""
        yield *what, "step", *outcome(compiled_loop, name, of)


def outcome(compile_for: Callable[..., jax.stages.Compiled], *of: Any) -> tuple[Any, ...]:
    """Whether it compiles, or why not; its kernels, the megabytes that it needs, and matrices that it copies."""
    try:
        program = compile_for(*of)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}", "", "", ""
    text, on_top = program.as_text(), program.memory_analysis().temp_size_in_bytes
    return "yes", launches(text), f"{on_top / 1e6:.0f}", len(gpu_loop.dequantized_in(text))


if __name__ == "__main__":
    begin(main)
