"""What the compiled loop takes: parameters, caches, and no more than 15 % on top of them.

Cases are so large that a pass's own buffers are little beside the caches, and another copy of those would show.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import eagle_jax
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling, Settings, request_keys
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.inspection import plan
from eagle_jax.loop.decode import advance, compiled_advance
from eagle_jax.loop.prefill import init_prefill, prefill, read_prompts
from eagle_jax.loop.state import BatchParams
from eagle_jax.ops import attention_parts
from eagle_jax.testing import TINY, synthetic_pair
from eagle_jax.workarounds import loop_options

MODE = Sampling(sampled=True, filtered=False)


def given_to_loop(target: Any, head: Any, tree: DynamicTree, rows: int, slots: int) -> tuple[Any, ...]:
    """What the loop is called with, of shapes."""
    drafter = Eagle(head=head, policy=tree)
    numbers, whole = jnp.zeros(rows), jnp.ones(rows, jnp.int32)
    settings = Settings(numbers, whole, numbers, numbers, request_keys([0] * rows, [0] * rows))
    request = BatchParams(settings, whole, whole, whole[:, None])
    tokens = jax.ShapeDtypeStruct((rows, slots + drafter.shape.depth + 1), jnp.int32)
    begin = functools.partial(prefill, mode=MODE, slots=slots, chunk=64, logprobs=False)
    state = jax.eval_shape(begin, target, drafter, request, tokens)
    return target, drafter, request, state, jax.ShapeDtypeStruct((), jnp.int32)


def on_top(loop: Any, given: tuple[Any, ...], fused: dict[str, bool]) -> float:
    """Bytes that a loop, compiled as users have it, needs beside parameters and caches, by the bytes of those."""
    target, drafter, _, state, _ = given
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((target, drafter, state.cache, state.draft)))
    memory = loop.lower(*given, mode=MODE).compile(fused).memory_analysis()
    whole = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return (whole + memory.temp_size_in_bytes) / kept - 1


def test_the_shipped_pair(fused):
    model = eagle_jax.load("toy")
    given = given_to_loop(model.target, model.head, DynamicTree(4, 2, 1), rows=8, slots=model.context)
    assert 0 <= on_top(compiled_advance(), given, fused) < 0.15


@pytest.mark.matrix
@pytest.mark.parametrize("copied", [False, True])
def test_a_copied_cache_would_show(copied: bool, fused):
    target, head = synthetic_pair(dataclasses.replace(TINY, head_dim=64))
    given = given_to_loop(target, head, DynamicTree(4, 2, 1), rows=2, slots=4096)
    copying = jax.jit(advance, static_argnames=("mode", "sharding"), compiler_options=loop_options())
    assert (on_top(copying if copied else compiled_advance(), given, fused) > 0.15) == copied


@pytest.mark.matrix
@pytest.mark.parametrize("in_parts", [True, False])
def test_prompts_are_read_with_few_scores(in_parts: bool, fused, monkeypatch, set_operations):
    """Eight chunks of 64 tokens over 65,536 slots have 537 MB of float32 scores."""
    set_operations(EAGLE_JAX_OPS="xla")
    if not in_parts:
        monkeypatch.setattr(attention_parts, "MAX_SCORE_BYTES", 2**40)
    jax.clear_caches()  # layers that were traced with another bound
    target, head = synthetic_pair(dataclasses.replace(TINY, head_dim=16, num_attention_heads=4))
    rows, slots = 8, 65536
    of = target, Plain(), *given_to_loop(target, head, DynamicTree(4, 2, 1), rows=rows, slots=slots)[2:4]
    reading = jax.eval_shape(lambda *of: init_prefill(*of, slots=slots), *of[:3])
    program = jax.jit(lambda *of: read_prompts(*of, chunk=64), donate_argnums=4, compiler_options=loop_options())
    temporary = program.lower(*of[:3], of[3].tokens, reading).compile(fused).memory_analysis().temp_size_in_bytes
    assert (temporary < 3 * 2**28) == in_parts, f"{temporary / 1e6:.0f} MB"


@pytest.mark.proof
def test_four_layers_of_llama_8b_with_its_eagle3_head(fused):
    """In float32, which a CPU makes of bfloat16 first; benchmarks/compile_only does the whole in bfloat16."""
    config, head = plan.configs("llama-3.1-8b-instruct")
    config, head = dataclasses.replace(config, num_hidden_layers=4), dataclasses.replace(head, taps=(0, 2, 4))
    shapes = plan.target_shapes(config, jnp.float32), plan.head_shapes(head, jnp.float32)
    given = given_to_loop(*shapes, DynamicTree(60, 7, 10), rows=8, slots=8192)
    assert 0 <= on_top(compiled_advance(), given, fused) < 0.15
