"""What does drawing the noise of a step's positions take, compared with `jax.random.gumbel`, whose bits it has?

    python -m benchmarks.kernels.noise --vocabulary 49152 --positions 9

Both take turns; printed is the least of many. Exits with 1 where the bits differ.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from eagle_jax.decoding.gumbel import gumbel

REPEATS = 50


def by_jax(key: jax.Array, size: int) -> jax.Array:
    return jax.random.gumbel(jax.random.wrap_key_data(key, impl="threefry2x32"), (size,), jnp.float32, mode="high")


def main() -> int:
    own = parser(__doc__)
    own.add_argument("--vocabulary", type=int, default=49152, help="%(default)s")
    own.add_argument("--positions", type=int, default=9, help="%(default)s")
    options = own.parse_args()
    keys = jnp.arange(2 * options.positions, dtype=jnp.uint32).reshape(-1, 2)
    methods = {
        name: jax.jit(jax.vmap(lambda key, draw=draw: draw(key, options.vocabulary)))
        for name, draw in {"ours": gumbel, "jax.random.gumbel": by_jax}.items()
    }
    drawn = {name: np.asarray(method(keys)) for name, method in methods.items()}
    seconds = dict.fromkeys(methods, float("inf"))
    for _ in range(REPEATS):
        for name, method in methods.items():
            start = time.perf_counter()
            jax.block_until_ready(method(keys))
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    same = bool(np.array_equal(*drawn.values()))
    rows = [(name, 1e3 * took, 1e3 * took / options.positions, same) for name, took in seconds.items()]
    title = f"{options.positions} positions, a vocabulary of {options.vocabulary}"
    show(title, ("noise", "ms", "ms a position", "same bits"), rows)
    return 0 if same else 1


if __name__ == "__main__":
    begin(main)
