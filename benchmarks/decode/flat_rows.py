"""What does the target's pass cost with the nodes of all requests in one row, and with a padded row for each request?

    EAGLE_JAX_OPS=xla python -m benchmarks.decode.flat_rows

Times one pass of a random target over the trees of 16 and 64 requests, by XLA or the CPU backend. Padded, it reads the
largest size of every tree, whatever is in it; in one row, as many nodes as the step's budget has. Both run in turns;
printed is the least of many.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.tables import show
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.loop.flat_nodes import FlatNodes
from eagle_jax.models import layout
from eagle_jax.models.cache import Cache
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY


@jax.jit
def padded(lm: LM, tokens: jax.Array, valid: jax.Array, ancestors: jax.Array, cache: Cache) -> jax.Array:
    positions = jnp.where(valid, cache.length[:, None], -1)
    return lm.logits(lm.forward(tokens, positions, ancestors, cache).hidden)


def one_row(size: int) -> Any:
    @jax.jit
    def run(lm: LM, tokens: jax.Array, valid: jax.Array, ancestors: jax.Array, cache: Cache) -> jax.Array:
        rows = FlatNodes.of(valid, size)
        nodes = rows.inputs(tokens, jnp.broadcast_to(cache.length[:, None], tokens.shape), ancestors)
        return lm.logits(lm.forward(*nodes, cache, flat=rows.flat_rows).hidden)

    return run


def inputs(lm: LM, requests: int, nodes: int, left: int, slots: int) -> tuple[Any, ...]:
    """Trees of `nodes` nodes of which `left` are valid, all below the root."""
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, lm.config.vocab_size, (requests, nodes)), jnp.int32)
    valid = jnp.broadcast_to(jnp.arange(nodes) < left, tokens.shape)
    ancestors = jnp.eye(nodes, dtype=bool)[None] | (jnp.arange(nodes) == 0)[None, None]
    cache = lm.empty_cache(requests, slots)
    cache = dataclasses.replace(cache, length=jnp.full(requests, slots // 2, jnp.int32))
    return tokens, valid, jnp.broadcast_to(ancestors, (requests, nodes, nodes)), cache


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--hidden", type=int, default=256, help="of the random target (%(default)s)")
    own.add_argument("--layers", type=int, default=4, help="of the random target (%(default)s)")
    own.add_argument("--slots", type=int, default=256, help="of the caches, half of them used (%(default)s)")
    own.add_argument("--nodes", type=int, default=16, help="of each request's tree (%(default)s)")
    own.add_argument("--each", type=numbers, default=(1, 2, 4), help="nodes read for each request (1,2,4)")
    own.add_argument("--repeats", type=int, default=20)
    options = own.parse_args()
    hidden = options.hidden
    sizes = dict(hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=options.layers, head_dim=32)
    config: LlamaConfig = dataclasses.replace(TINY, **sizes, num_attention_heads=hidden // 32, num_key_value_heads=2)
    lm = LM.init(config, jax.random.key(0))
    lm = LM(params=layout.for_decoding(lm.params, config.head_dim), config=config)
    rows = []
    for requests in (16, 64):
        runs = {"padded": (padded, inputs(lm, requests, options.nodes, options.nodes, options.slots))}
        for each in options.each:
            runs[str(each)] = one_row(each * requests), inputs(lm, requests, options.nodes, each, options.slots)
        least = dict.fromkeys(runs, np.inf)
        for _ in range(options.repeats + 1):
            for name, (run, of) in runs.items():
                start = time.perf_counter()
                jax.block_until_ready(run(lm, *of))
                least[name] = min(least[name], time.perf_counter() - start)
        whole = least.pop("padded")
        cells = (f"{1e3 * seconds:.1f} ms ({seconds / whole:.2f})" for seconds in least.values())
        rows.append((requests, f"{1e3 * whole:.1f} ms", *cells))
    columns = (
        "requests",
        f"{options.nodes} nodes each, padded",
        *(f"{each} each, in one row" for each in options.each),
    )
    show(f"One pass of a random target, {options.layers} layers of {hidden}", columns, rows)


if __name__ == "__main__":
    begin(main)
