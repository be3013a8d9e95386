"""Compiles a loop that attends to its cache and writes to it, with the TPU compiler, and prints what became of it.

A process of its own, since libtpu reads its environment when JAX is imported: `python tpu_loop.py v5e:2x2`.
"""

import json
import os
import re
import sys
from unittest import mock

os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-4"}
os.environ["EAGLE_JAX_OPS"] = "tree_attention:tpu"

import jax  # noqa: E402  # after the environment
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import P  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding  # noqa: E402

from eagle_jax.models.cache import Cache, KVState  # noqa: E402
from eagle_jax.ops import tree_attention  # noqa: E402
from eagle_jax.sharding import AXES, Sharding, sharded  # noqa: E402

ROWS, HEADS, GROUP, NODES, SLOTS, SIZE = 2, 4, 4, 60, 4096, 128


def loop(q, cache, visible, until, *, sharding):
    """`until` passes of one layer; what it mixes is the next pass's query, and its first row is committed."""

    def step(carry):
        index, q, cache = carry
        fresh = (q[:, ::GROUP], q[:, ::GROUP])
        mixed = tree_attention(q, fresh, visible, (cache.k[0], cache.v[0]), cache.length)
        kv = (tuple(part[:, :, :8] for part in fresh),)
        return index + 1, mixed, cache.write(kv, cache.length, cache.length + 1)

    first = jnp.zeros((), jnp.int32), q, cache
    _, mixed, cache = jax.lax.while_loop(lambda carry: carry[0] < until, step, first)
    return {"k": [mixed], "cache": cache}  # what is called k lies by rows and heads


def main() -> None:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=sys.argv[1]).devices
    mesh = Mesh(np.array(devices[:4]).reshape(2, 2), AXES, axis_types=(AxisType.Auto,) * 2)

    def struct(shape, dtype=jnp.bfloat16):
        spec = P(*AXES) if len(shape) == 4 else P(AXES[0]) if shape else P()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    cache, lengths = struct((ROWS, HEADS, SLOTS, SIZE)), struct((ROWS,), jnp.int32)
    given = (
        struct((ROWS, HEADS * GROUP, NODES, SIZE)),
        Cache(layers=(KVState(cache, cache),), length=lengths, rope_length=lengths),
        struct((ROWS, NODES, NODES), jnp.bool_),
        struct((), jnp.int32),
    )
    program = jax.jit(sharded(loop), static_argnames="sharding", donate_argnums=1)
    with mock.patch("jax.default_backend", return_value="tpu"):
        compiled = program.lower(*given, sharding=Sharding(mesh)).compile()
    text = compiled.as_text()
    found = {
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
        "copies": len(re.findall(rf"= \(?\w+\[\d+,\d+,{SLOTS},{SIZE}\][^=]* copy(-start)?\(", text)),
        "collectives": len(re.findall(r"all-(gather|reduce|to-all)\w*\(", text)),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
