"""What does XLA make of the decoding loop on an H200: how many kernels a step, and is anything large copied?

Compiles for a GPU that is not there: `pip install jax-cuda13-plugin jax-cuda13-pjrt` of JAX's own version, with
`--no-deps`, is enough. Weights are only shapes. Prints a row for each loop, and exits with 1 if one copies a cache, or
dequantizes a whole matrix in memory, where it would be read again.

Not seen is what needs the device: times, and which of several kernels for one product XLA would choose there.

    python -m benchmarks.compile_only.gpu_loop
    python -m benchmarks.compile_only.gpu_loop --layers 32 --quantize int4 --nodes 60 --attention gpu
    python -m benchmarks.compile_only.gpu_loop --quantize int4 --attention xla --int4 gpu
"""

import argparse
import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from benchmarks.compile_only.launches import launches
from benchmarks.compile_only.shapes import TREES
from eagle_jax.decoding.sampling import GREEDY
from eagle_jax.ops import VARIABLE
from eagle_jax.ops.gpu import int4 as int4_gpu
from eagle_jax.workarounds import loop_options

# What the compiler asks about a GPU, in the form of XLA's GpuTargetConfigProto.
TARGET_CONFIG = """
gpu_device_info {{
  name: "{name}" device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
  core_count: {cores} fpus_per_core: {fpus} clock_rate_ghz: {clock}
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: {threads}
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {shared_optin} shared_memory_per_core: {shared}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_memory_size: {memory} memory_bandwidth: {bandwidth} l2_cache_size: {l2}
}}
platform_name: "CUDA"
"""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU of NVIDIA's, from its data sheet: sizes in bytes, the clock in GHz, the bandwidth in bytes a second."""

    name: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    clock: float
    threads: int
    shared_optin: int
    shared: int
    memory: int
    bandwidth: int
    l2: int


GPUS = {
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 128, 1.98, 2048, 232448, 233472, 151397597184, 4800 * 10**9, 50 * 2**20),
    "a100": Gpu("NVIDIA A100", (8, 0), 108, 64, 1.41, 2048, 166912, 167936, 42949672960, 1555 * 10**9, 40 * 2**20),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 128, 2.04, 1536, 101376, 102400, 24 * 10**9, 300 * 10**9, 48 * 2**20),
    "t4": Gpu("Tesla T4", (7, 5), 40, 64, 1.59, 1024, 65536, 65536, 16 * 10**9, 320 * 10**9, 4 * 2**20),
}
LARGE = 2**23  # numbers: half of the smallest matrix of an 8B target, and four times a cache of 2,048 slots
COLUMNS = ("weights", "attention", "nodes", "kernels a step", "on top, MB", "copies of a cache", "matrices dequantized")


def main() -> int:
    own = parser(__doc__)
    own.add_argument("--target", default="llama-3.1-8b-instruct", help="a name of `eagle-jax models` (%(default)s)")
    own.add_argument("--layers", type=int, default=2, help="of the target; all layers are alike (%(default)s)")
    own.add_argument("--nodes", type=numbers, default=(0, 60), help=f"0 is plain, or of {', '.join(map(str, TREES))}")
    own.add_argument("--quantize", default="none,int8,int4", help="as for `load`; none keeps bfloat16")
    own.add_argument("--attention", default="xla,gpu", help="of the backends of eagle_jax.ops (%(default)s)")
    own.add_argument("--int4", default="xla", help="who multiplies weights of 4 bits: xla or gpu (%(default)s)")
    own.add_argument("--slots", type=int, default=2048, help="of the cache (%(default)s)")
    own.add_argument("--requests", type=int, default=1, help="%(default)s")
    options = own.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the plugin compiles; its device is not there to be started
    cases = [
        row(nodes, quantize, attention, options)
        for quantize in options.quantize.split(",")
        for attention in options.attention.split(",")
        for nodes in options.nodes
    ]
    title = f"{options.target}, {options.layers} layers, {options.requests} request(s), {options.slots} slots, H200"
    show(title, COLUMNS, cases)
    return int(any(case[-2] or case[-1] != "0" for case in cases))


def row(nodes: int, quantize: str, attention: str, options: argparse.Namespace) -> tuple[Any, ...]:
    """Compiles a loop and counts what it is made of."""
    os.environ[VARIABLE] = f"tree_attention:{attention},linear:{options.int4}"
    jax.clear_caches()  # what was traced with another backend
    program = compiled(nodes, None if quantize == "none" else quantize, options)
    text, more = program.as_text(), program.memory_analysis().temp_size_in_bytes
    matrices = str(len(dequantized_in(text)))
    if "int4" in quantize and options.int4 == "gpu" and int4_gpu.KERNEL_NAME not in text:
        matrices += ", and the kernel is not used"
    copies = shapes.copies_of_caches(text, options.slots)
    return quantize, attention, nodes, launches(text), f"{more / 1e6:.1f}", copies, matrices


def compiled(nodes: int, quantize: str | None, options: argparse.Namespace) -> jax.stages.Compiled:
    """The loop for one H200."""
    config, head = shapes.configs(options.target, options.layers)
    policy = shapes.policy_of(nodes)
    here = shapes.one_device()
    how = dict(requests=options.requests, slots=options.slots, quantize=quantize)
    with as_if_there():
        of = shapes.arguments(config, head, policy, here, **how)
        return shapes.lowered(on_gpu(of), mode=GREEDY).compile(loop_options())


@contextlib.contextmanager
def as_if_there(name: str = "h200") -> Iterator[None]:
    """For all that asks which platform this is, and what it can; newer Pallas asks which device."""
    with contextlib.ExitStack() as during:
        during.enter_context(shapes.platform("gpu"))
        capability = float("{}.{}".format(*GPUS[name].capability))
        during.enter_context(mock.patch("eagle_jax.platform.compute_capability", return_value=capability))
        if hasattr(jax.sharding, "AbstractDevice"):
            device = jax.sharding.AbstractDevice(GPUS[name].name, None, "gpu")
            mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
            during.enter_context(jax.sharding.use_abstract_mesh(mesh))
        yield


def on_gpu(tree: Any, name: str = "h200") -> Any:
    """The same shapes, on a GPU as its compiler sees it."""
    config = TARGET_CONFIG.format(**dataclasses.asdict(GPUS[name]))
    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=config)
    one = SingleDeviceSharding(topology.devices[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), tree)


def dequantized_in(program: str) -> list[str]:
    """Floats, or bytes for a kernel, as large as a matrix of weights that an operation of the step leaves in memory.

    The step is the loop's body that does most: its text is the longest.
    """
    loops = set(re.findall(r"body=%?([\w.\-]+)", program))
    parts = re.split(r"\n(?=%|ENTRY)", program)
    step = max((part for part in parts if part.split(" ")[0].lstrip("%") in loops), key=len)
    made = re.findall(r" = (?:bf16|f32|u8)\[([\d,]+)\]\S* (?:fusion|convert|copy|transpose)\(", step)
    return [dims for dims in made if math.prod(numbers(dims)) >= LARGE]


if __name__ == "__main__":
    begin(main)
