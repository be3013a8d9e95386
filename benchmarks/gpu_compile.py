"""What does XLA make of the decoding loop on an H200: how many kernels a cycle, and is anything copied that is large?

Compiles for a GPU that is not there: `pip install jax-cuda13-plugin jax-cuda13-pjrt` of JAX's own version, with
`--no-deps`, is enough, no hardware. Of weights there are only shapes. Prints a row for each loop, and exits with 1 if
one copies a cache, or makes floats of a whole rounded matrix in memory, where it would read them again.

What needs the device is not seen: how long anything takes, and which of several kernels for one product XLA would
choose by timing them there.

    python benchmarks/gpu_compile.py
    python benchmarks/gpu_compile.py --layers 32 --quantize int4 --nodes 60 --attention gpu
    python benchmarks/gpu_compile.py --quantize int4 --attention xla --int4 gpu
"""

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402  # after what it reads
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import tpu_compile  # noqa: E402
from gpu.launches import launches  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, SingleDeviceSharding  # noqa: E402
from tpu_kernel import TREES, copies_of_caches  # noqa: E402

from eagle_jax.decoding.decode import advance  # noqa: E402
from eagle_jax.decoding.policy import DynamicTree  # noqa: E402
from eagle_jax.ops import VARIABLE  # noqa: E402
from eagle_jax.ops.gpu import int4 as int4_gpu  # noqa: E402
from eagle_jax.sharding import AXES, Sharding  # noqa: E402
from eagle_jax.tuning import plan  # noqa: E402
from eagle_jax.workarounds import loop_options  # noqa: E402

# What the compiler asks about a GPU, in the form of XLA's GpuTargetConfigProto; NVIDIA's H200 data sheet.
H200 = """
gpu_device_info {
  name: "NVIDIA H200" device_vendor: "NVIDIA Corporation"
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_memory_size: 151397597184 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
}
platform_name: "CUDA"
"""
LARGE = 2**23  # numbers: half of the smallest matrix of an 8B target, and four times a cache of 2,048 slots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models`")
    parser.add_argument("--layers", type=int, default=2, help="of the target; all layers are alike")
    parser.add_argument("--nodes", default="0,60", help=f"0 decodes plainly, or of {', '.join(map(str, TREES))}")
    parser.add_argument("--quantize", default="none,int8,int4", help="as for `load`; none keeps bfloat16")
    parser.add_argument("--attention", default="xla,gpu", help="of the backends of eagle_jax.ops")
    parser.add_argument("--int4", default="xla", help="who multiplies weights of 4 bits: xla or gpu")
    parser.add_argument("--slots", type=int, default=2048, help="of the cache")
    parser.add_argument("--requests", type=int, default=1)
    options = parser.parse_args()
    options.temperature = 0.0
    print(f"{options.target}, {options.layers} layers, {options.requests} request(s), {options.slots} slots, H200\n")
    print(
        "| weights | attention | nodes | kernels a cycle | on top, MB | copies of a cache | floats of whole matrices |"
    )
    print("|---" * 7 + "|", flush=True)
    failed = [
        looked_at(int(nodes), rounding, backend, options)
        for rounding in options.quantize.split(",")
        for backend in options.attention.split(",")
        for nodes in options.nodes.split(",")
    ]
    raise SystemExit(int(any(failed)))


def looked_at(nodes: int, rounding: str, backend: str, options: argparse.Namespace) -> bool:
    """Compiles a loop and prints what it is made of; whether it copies a cache or unpacks a matrix."""
    os.environ[VARIABLE] = f"tree_attention:{backend},linear:{options.int4}"
    jax.clear_caches()  # what was traced with another backend
    program = compiled(nodes, None if rounding == "none" else rounding, options)
    text, more = program.as_text(), program.memory_analysis().temp_size_in_bytes
    copies, unpacked = copies_of_caches(text, options.slots), unpacked_in(text)
    cells = rounding, backend, nodes, launches(text), f"{more / 1e6:.1f}", copies, len(unpacked)
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    left_out = "int4" in rounding and options.int4 == "gpu" and int4_gpu.IN_PROGRAMS not in text
    if left_out:
        print(f"the kernel {options.int4} is not in it", flush=True)
    return copies > 0 or bool(unpacked) or left_out


def compiled(nodes: int, rounding: str | None, options: argparse.Namespace) -> jax.stages.Compiled:
    """The loop for one H200."""
    config, head = plan.configs(options.target)
    config = dataclasses.replace(config, num_hidden_layers=options.layers)
    head = dataclasses.replace(head, taps=(0, options.layers // 2, options.layers))
    policy = DynamicTree(*TREES[nodes]) if nodes else None
    here = Sharding(Mesh(np.array(jax.devices("cpu")[:1]).reshape(1, 1), AXES))
    asked = argparse.Namespace(**vars(options) | {"quantize": rounding})
    with as_if_there():
        given, mode = tpu_compile.shapes(config, head if policy else None, policy, here, asked)
        given = on_gpu((*given, jax.ShapeDtypeStruct((), jnp.int32)))
        program = jax.jit(advance, static_argnames=("mode", "over"), donate_argnames=("state",))
        return program.lower(*given, mode=mode).compile(loop_options())


@contextlib.contextmanager
def as_if_there() -> Iterator[None]:
    """For all that asks which platform this is; newer Pallas asks which device."""
    with contextlib.ExitStack() as during:
        during.enter_context(mock.patch("jax.default_backend", return_value="gpu"))
        if hasattr(jax.sharding, "AbstractDevice"):
            named = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")
            mesh = jax.sharding.AbstractMesh((), (), abstract_device=named)
            during.enter_context(jax.sharding.use_abstract_mesh(mesh))
        yield


def on_gpu(tree: Any) -> Any:
    """The same shapes, on a GPU that is not there."""
    one = SingleDeviceSharding(device())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), tree)


@functools.cache
def device() -> jax.Device:
    """An H200 as its compiler sees it."""
    return topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=H200).devices[0]


def body_of(text: str) -> str:
    """The cycle, of a compiled loop's text: the computation that does most and stands in no kernel."""
    loops = set(re.findall(r"body=%?([\w.\-]+)", text))
    parts = re.split(r"\n(?=%|ENTRY)", text)
    return max((part for part in parts if part.split(" ")[0].lstrip("%") in loops), key=len)


def unpacked_in(text: str) -> list[str]:
    """Floats, or bytes for a kernel, as large as a matrix of weights that an operation of the loop leaves in memory."""
    made = re.findall(r" = (?:bf16|f32|u8)\[([\d,]+)\]\S* (?:fusion|convert|copy|transpose)\(", body_of(text))
    return [dims for dims in made if math.prod(map(int, dims.split(","))) >= LARGE]


if __name__ == "__main__":
    main()
