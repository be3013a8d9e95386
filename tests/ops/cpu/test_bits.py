"""On a CPU a token's logits are the same to the bit in any tree, in any batch and one after another.

So plain decoding and every drafter give the same text there, in bfloat16 and of rounded weights too, not up to ties. It
holds where all of a model is machine code of ours: not in float16, with experts, or where attention is XLA's.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import params_of
from states import steps_by_row

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import DecodeState
from eagle_jax.models import layout
from eagle_jax.models.cache import Cache
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import quantize_params, scheme_of
from eagle_jax.ops.cpu import backend
from eagle_jax.testing import TINY, synthetic_pair

pytestmark = pytest.mark.skipif(backend.refusal() is not None, reason="the CPU backend is not used")

CONFIG = dataclasses.replace(TINY, hidden_size=128, intermediate_size=384, head_dim=32, num_hidden_layers=2)
PARENTS = [-1, 0, 0, 1, 2, 3, 5, 6, 1]
LENGTHS, SLOTS, NEW = (127, 5, 61), 192, 30
BATCH = len(LENGTHS)


def laid_out(params: dict, quantize: str | None) -> dict:
    """Weights for decoding; `params` is emptied."""
    scheme = scheme_of(quantize)
    return layout.for_decoding(params if scheme is None else quantize_params(params, scheme), CONFIG.head_dim)


def target(dtype: str, quantize: str | None) -> LM:
    params = jax.tree.map(lambda leaf: 4 * leaf.astype(dtype), LM.init(CONFIG, jax.random.key(0)).params)
    return LM(params=laid_out(params, quantize), config=CONFIG)


def prefixed(lm: LM, tokens: jax.Array, lengths: tuple[int, ...]) -> Cache:
    """A cache of texts `tokens[b n]`, of which each row has some."""
    kv = jax.jit(LM.causal)(lm, tokens).kv
    zeros, count = jnp.zeros(len(lengths), jnp.int32), jnp.asarray(lengths, jnp.int32)
    return lm.empty_cache(len(lengths), SLOTS).write(kv, zeros, count)


@jax.jit
def logits_of_tree(lm: LM, cache: Cache, tokens: jax.Array, positions: jax.Array, ancestors: jax.Array) -> jax.Array:
    return lm.logits(lm.forward(tokens, positions, ancestors, cache).hidden)


@jax.jit
def one_more(lm: LM, cache: Cache, token: jax.Array) -> tuple[jax.Array, Cache]:
    """The logits behind the next token of a single text, and the cache with it."""
    output = lm.forward(token[None, None], cache.length[:, None], jnp.ones((1, 1, 1), bool), cache)
    return lm.logits(output.hidden)[0, 0], cache.commit(output.kv, jnp.ones(1, jnp.int32))


def path_to(node: int) -> list[int]:
    return [*path_to(PARENTS[node]), node] if node >= 0 else []


@pytest.mark.matrix
@pytest.mark.parametrize(
    "dtype, quantize, activations",
    [
        ("float32", None, "int16"),
        ("bfloat16", None, "int16"),
        *itertools.product(["float32"], ["int8"], ["int16", "int8"]),
        *itertools.product(["bfloat16"], ["int4", "int4-128/none"], ["int16", "int8"]),
    ],
)
def test_the_logits_of_a_node_are_those_of_its_path(dtype, quantize, activations, set_operations):
    set_operations(EAGLE_JAX_ACTIVATIONS=activations)
    lm, n = target(dtype, quantize), len(PARENTS)
    tokens = jax.random.randint(jax.random.key(1), (BATCH, max(LENGTHS) + n), 0, CONFIG.vocab_size, jnp.int32)
    text, nodes = tokens[:, :-n], tokens[:, -n:]
    ancestors = np.zeros((n, n), bool)
    for node in range(n):
        ancestors[node, path_to(node)] = True
    depth = ancestors.sum(1) - 1
    cache = prefixed(lm, text, LENGTHS)
    positions = cache.length[:, None] + jnp.asarray(depth, jnp.int32)[None]
    seen = jnp.broadcast_to(jnp.asarray(ancestors), (BATCH, n, n))
    together = np.asarray(logits_of_tree(lm, cache, nodes, positions, seen))
    for row, length in enumerate(LENGTHS):
        alone = prefixed(lm, text[row : row + 1], (length,))
        for node in range(n):
            after = alone
            for step in path_to(node):
                logits, after = one_more(lm, after, nodes[row, step])
            np.testing.assert_array_equal(logits, together[row, node], err_msg=f"row {row}, node {node}")


def decoded(target: LM, drafter: Drafter, texts: np.ndarray, rows: list[int], temperature: float) -> DecodeState:
    """Some of the texts, continued."""
    request = params_of([LENGTHS[row] for row in rows], NEW, temperature=temperature, seeds=rows)
    given, mode = (target, drafter, request), Sampling(sampled=temperature > 0, filtered=False)
    state = compiled_prefill()(*given, jnp.asarray(texts[rows]), mode=mode, slots=SLOTS, chunk=64, logprobs=False)
    return compiled_advance()(*given, state, jnp.asarray(1000, jnp.int32), mode=mode)


@pytest.mark.matrix
@pytest.mark.parametrize("quantize, activations", [(None, "int16"), ("int4", "int8")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_loop_leaves_the_same_bits_with_a_drafter_and_in_a_batch(
    quantize, activations, temperature, set_operations
):
    """In bfloat16, where any bit that differed between layers would be rounded to some that differ."""
    set_operations(EAGLE_JAX_ACTIVATIONS=activations)
    pair = (jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model) for model in synthetic_pair(CONFIG, error=0.1))
    lm, head = (dataclasses.replace(model, params=laid_out(dict(model.params), quantize)) for model in pair)
    texts = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (BATCH, SLOTS + 72)).astype(np.int32)
    drafter = Eagle(head=head, policy=DynamicTree(8, 3, 3))
    together = decoded(lm, drafter, texts, list(range(BATCH)), temperature)
    committed = [np.asarray(part) for part in (*together.cache.k, *together.cache.v)]
    assert steps_by_row(together).max() < NEW - 4, "it drafts"
    for row, length in enumerate(LENGTHS):
        alone = decoded(lm, Plain(), texts, [row], temperature)
        end = length + NEW
        np.testing.assert_array_equal(alone.tokens[0, :end], together.tokens[row, :end])
        for one, other in zip((*alone.cache.k, *alone.cache.v), committed, strict=True):
            np.testing.assert_array_equal(one[0, :, : end - 1], other[row, :, : end - 1])
