"""What does a tree cost with recurrent layers in the target, compared with attention in all of them?

    python -m benchmarks.decode.recurrent_trees

Times the target's pass over trees of several sizes, with the commit of a path of them, for two random targets of the
same width: attention in all layers (Qwen3's shape), and Gated DeltaNet in three of four (Qwen3.5's). Both run in turns;
printed is the least of many, in milliseconds and in passes over one node of the same target.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from eagle_jax.configs.target import DeltaNet, LlamaConfig, Rope
from eagle_jax.decoding.tree import depth_below
from eagle_jax.loop.flat_nodes import PaddedNodes
from eagle_jax.models import layout
from eagle_jax.models.cache import Cache
from eagle_jax.models.lm import LM

DEPTH = 7  # of the deepest node


def attention(hidden: int, layers: int) -> LlamaConfig:
    """A target with Qwen3-0.6B's proportions and a small vocabulary: logits are not computed."""
    return LlamaConfig(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=128,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope=Rope(theta=1e6),
        qk_norm=True,
    )


def recurrent(like: LlamaConfig) -> LlamaConfig:
    """The same with Gated DeltaNet in three of four layers, as many value heads as the other has query heads."""
    net = DeltaNet(
        layers=tuple(i for i in range(like.num_hidden_layers) if (i + 1) % 4),
        num_key_heads=like.num_attention_heads,
        num_value_heads=like.num_attention_heads,
        key_head_dim=128,
        value_head_dim=128,
        conv_kernel=4,
    )
    rope = dataclasses.replace(like.rope, partial_rotary_factor=0.25)
    return dataclasses.replace(like, delta_net=net, gated=True, rope=rope, norm_plus_one=True)


def ancestors_of(nodes: int) -> np.ndarray:
    """Ancestors in a tree of chains below the root, each of `DEPTH` nodes at most."""
    chains, seen = -(-(nodes - 1) // DEPTH), np.eye(nodes, dtype=bool)
    for node in range(1, nodes):
        seen[node] |= seen[max(node - chains, 0)]
    return seen


@jax.jit
def verify(lm: LM, tokens: jax.Array, ancestors: jax.Array, path: jax.Array, cache: Cache) -> Any:
    """The hidden states of a tree's nodes, and the cache after a path of the tree is committed to it."""
    positions = cache.length[:, None] + depth_below(ancestors)
    output = lm.forward(tokens, positions, ancestors, cache)
    added = PaddedNodes().layer_rows_at(output.kv, path)
    return output.hidden, cache.commit(added, jnp.ones_like(cache.length))


def inputs(lm: LM, nodes: int, slots: int) -> tuple[Any, ...]:
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 1024, (1, nodes)), jnp.int32)
    path = jnp.zeros((1, min(nodes, DEPTH + 1)), jnp.int32)
    cache = dataclasses.replace(lm.empty_cache(1, slots), length=jnp.full(1, slots // 2, jnp.int32))
    return tokens, jnp.asarray(ancestors_of(nodes))[None], path, cache


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--hidden", type=int, default=1024, help="of the random targets (%(default)s)")
    own.add_argument("--layers", type=int, default=28, help="of the random targets (%(default)s)")
    own.add_argument("--slots", type=int, default=1024, help="of the caches, half of them used (%(default)s)")
    own.add_argument("--nodes", type=numbers, default=(1, 6, 16, 60), help="of the trees (1,6,16,60)")
    own.add_argument("--dtype", default="bfloat16", help="of the weights (%(default)s)")
    own.add_argument("--repeats", type=int, default=20)
    options = own.parse_args()
    plain = attention(options.hidden, options.layers)
    targets, runs = {}, {}
    for name, config in (("attention in all layers", plain), ("Gated DeltaNet in 3 of 4", recurrent(plain))):
        lm = LM.init(config, jax.random.key(0), jnp.dtype(options.dtype))
        targets[name] = LM(params=layout.for_decoding(lm.params, config.head_dim), config=config)
        runs |= {(name, nodes): inputs(targets[name], nodes, options.slots) for nodes in options.nodes}
    least = dict.fromkeys(runs, np.inf)
    for _ in range(options.repeats + 1):
        for key, of in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(verify(targets[key[0]], *of))
            least[key] = min(least[key], time.perf_counter() - start)
    rows = []
    for name in targets:
        one = least[name, options.nodes[0]]
        cells = (f"{1e3 * least[name, n]:.1f} ms ({least[name, n] / one:.2f})" for n in options.nodes)
        rows.append((name, *cells))
    columns = ("target", *(f"{nodes} node{'s' * (nodes > 1)}" for nodes in options.nodes))
    show(f"Pass and commit, {options.layers} layers of {options.hidden}, {options.dtype}", columns, rows)


if __name__ == "__main__":
    begin(main)
