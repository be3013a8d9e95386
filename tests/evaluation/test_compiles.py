import jax
import jax.numpy as jnp

from eagle_jax.evaluation.compiles import counting_compiles


def test_counts_compiling_and_nothing_else():
    double = jax.jit(lambda x: x * 2 + 1)
    x = jnp.arange(7)
    with counting_compiles() as first:
        double(x)
    with counting_compiles() as second:
        double(x)
    double(jnp.arange(9))  # outside of both
    assert first.count == 1 and first.seconds > 0
    assert second.count == 0 and second.seconds == 0


def test_programs_from_the_persistent_cache_count_too():
    jax.jit(lambda x: x * 3 + 1)(jnp.arange(7))
    jax.clear_caches()
    with counting_compiles() as compiles:
        jax.jit(lambda x: x * 3 + 1)(jnp.arange(7))
    assert compiles.count >= 1
