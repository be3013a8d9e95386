"""What does a tree cost a TPU whose target has recurrent layers, by its compiler, and what memory do its nodes take?

    PYTHONPATH=build/libtpu:. python -m benchmarks.compile_only.recurrent_trees

Compiles the pass over a tree and the commit of a path for eight layers of Qwen3.5-9B's shape and for four of them, in
bfloat16, without embedding and logits. Their difference, a period of three layers with Gated DeltaNet and one with
attention, is printed: predicted time (as in `tpu_step`), operations, bytes, and what the nodes add to the state.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from benchmarks.compile_only import shapes
from benchmarks.compile_only.tpu_step import TOPOLOGIES, predicted
from benchmarks.decode.recurrent_trees import DEPTH, verify
from eagle_jax.configs.target import DeltaNet, LlamaConfig, Rope
from eagle_jax.inspection.plan import target_shapes
from eagle_jax.models.lm import empty_cache
from eagle_jax.sharding import Sharding


def config(layers: int) -> LlamaConfig:
    """Qwen3.5-9B's, with so many layers and a small vocabulary."""
    net = DeltaNet(
        layers=tuple(i for i in range(layers) if (i + 1) % 4),
        num_key_heads=16,
        num_value_heads=32,
        key_head_dim=128,
        value_head_dim=128,
        conv_kernel=4,
    )
    return LlamaConfig(
        vocab_size=1024,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope=Rope(theta=1e7, partial_rotary_factor=0.25),
        qk_norm=True,
        norm_plus_one=True,
        gated=True,
        delta_net=net,
    )


def arguments(layers: int, nodes: int, slots: int, sharding: Sharding) -> tuple[Any, ...]:
    """Target, tree, path and cache, as shapes on a chip."""
    with shapes.platform("tpu"):
        target = target_shapes(config(layers), jnp.dtype("bfloat16"))
        cache = jax.eval_shape(lambda: empty_cache(config(layers), 1, slots, jnp.bfloat16))
    tree = jax.ShapeDtypeStruct((1, nodes), jnp.int32), jax.ShapeDtypeStruct((1, nodes, nodes), jnp.bool_)
    path = jax.ShapeDtypeStruct((1, min(nodes, DEPTH + 1)), jnp.int32)
    rows = shapes.placed((*tree, path, cache), sharding, sharding.state)
    return shapes.placed(target, sharding, sharding.target), *rows


def compiled(target: Any, tokens: Any, visible: Any, path: Any, cache: Any, *, sharding: Sharding) -> Any:
    """What is compiled: the pass over a tree and the commit of a path."""
    return verify(target, tokens, visible, path, cache)


def added(nodes: int, slots: int) -> int:
    """Bytes that the nodes of a tree add to the state of a period, before a path is chosen."""
    period = config(4)

    def forward(target: Any, tokens: Any, visible: Any) -> Any:
        return target.forward(tokens, tokens, visible, empty_cache(period, 1, slots, jnp.bfloat16)).kv

    with shapes.platform("tpu"):
        tree = jax.ShapeDtypeStruct((1, nodes), jnp.int32), jax.ShapeDtypeStruct((1, nodes, nodes), jnp.bool_)
        kv = jax.eval_shape(forward, target_shapes(period, jnp.dtype("bfloat16")), *tree)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kv))


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--chip", default="v6e", choices=TOPOLOGIES, help="(%(default)s)")
    own.add_argument("--nodes", type=numbers, default=(1, 16, 60), help="of the trees (1,16,60)")
    own.add_argument("--slots", type=int, default=2048, help="of the cache (%(default)s)")
    options = own.parse_args()
    sharding, rows, plain = shapes.tpu_mesh(TOPOLOGIES[options.chip], (1, 1)), [], 0.0
    for nodes in options.nodes:
        four, eight = (
            predicted(options.chip, compiled, arguments(layers, nodes, options.slots, sharding), sharding, donate=(4,))
            for layers in (4, 8)
        )
        plain = plain or eight - four
        size = added(nodes, options.slots) / 2**20
        rows.append((nodes, f"{1e6 * (eight - four):.0f} us", f"{(eight - four) / plain:.2f}", f"{size:.2f} MiB"))
    columns = ("nodes", "four layers", "of one node", "added by the nodes")
    show(f"Qwen3.5-9B's shape on a {options.chip}, {options.slots} slots, bfloat16", columns, rows)


if __name__ == "__main__":
    begin(main)
