"""A pass of an EAGLE-1 head, and a chain of guesses, as one operation each: what their parts give, or left to them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.config import EagleConfig
from eagle_jax.decoding.policy import DynamicTree, SureChain
from eagle_jax.decoding.sampling import GREEDY, Sampling, Settings, request_keys
from eagle_jax.drafters.base import View
from eagle_jax.drafters.eagle import Eagle, EagleState
from eagle_jax.kernels import native
from eagle_jax.models import head_pass, layout
from eagle_jax.models.cache import Cache
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Rounding, quantise
from eagle_jax.models.target import NOWHERE
from eagle_jax.testing import TINY

pytestmark = pytest.mark.skipif(not native.is_used(), reason="there is no llvmlite for this machine")

CONFIG = dataclasses.replace(
    TINY,
    vocab_size=256,
    hidden_size=96,
    intermediate_size=192,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
)
SLOTS = 140
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
CLOSE = 1e-5  # of the largest number: what is added up in the same order has the same bits, on this CPU


def head_of(dtype, key, *, config=CONFIG, bias=True, drafts=128):
    """A head with weights of about the size that trained ones have, laid out for decoding."""
    made = Head.init(EagleConfig(layers=config, fc_bias=bias, draft_vocab_size=drafts), key, jnp.dtype(dtype))
    params = jax.tree.map(lambda leaf: (5 * leaf if leaf.ndim > 1 else leaf * 1.3 + 0.2).astype(dtype), made.params)
    whole = drafts in (None, config.vocab_size)
    ids = None if whole else jnp.arange(drafts, dtype=jnp.int32) * 2  # each other token of the target
    return dataclasses.replace(made, params=layout.for_decoding(params, config.head_dim), vocabulary=ids)


def target_of(dtype, key, *, tied=True, config=CONFIG):
    config = dataclasses.replace(config, tie_word_embeddings=tied)
    made = LM.init(config, key, jnp.dtype(dtype))
    params = jax.tree.map(lambda leaf: 20 * leaf if leaf.ndim > 1 else leaf, made.params)
    return LM(params=layout.for_decoding(params, config.head_dim), config=config)


def cache_of(head, keys, lengths):
    empty = head.empty_cache(len(lengths), SLOTS, jnp.float32)
    k, v = (jax.random.normal(key, empty.k[0].shape) for key in keys)
    lengths = jnp.asarray(lengths, jnp.int32)
    return Cache(k=(k,) * len(empty.k), v=(v,) * len(empty.k), length=lengths, rope_length=lengths)


def watched(monkeypatch):
    """What was one operation from now on: "head" or "chain"."""
    found = []

    def telling(name):
        made = getattr(native, name)

        def told(*args):
            found.append(name)
            return made(*args)

        return told

    for name in ("head", "chain"):
        monkeypatch.setattr(native, name, telling(name))
    return found


def in_parts(monkeypatch):
    for name in ("head", "chain"):
        monkeypatch.setattr(head_pass, name, lambda *args, **named: None)
    jax.clear_caches()


def drafted(head, target, keys, *, batch=2, nodes=3, beside=0, wanted=None):
    """Outputs, keys, values and logits over a cache of random ones; rows from `wanted` on stand nowhere."""
    cache = cache_of(head, keys[:2], np.linspace(3, SLOTS - nodes, batch).astype(int))
    rows = 3 * jax.random.normal(keys[2], (2, batch, nodes, CONFIG.hidden_size))
    earlier = jax.random.normal(keys[3], (2, batch, cache.k[0].shape[1], beside, CONFIG.head_dim))
    visible = jax.random.bernoulli(keys[4], 0.5, (batch, nodes, beside + nodes))
    visible |= jnp.pad(jnp.eye(nodes, dtype=bool), ((0, 0), (beside, 0)))[None]
    positions = cache.length[:, None] + jnp.arange(nodes, dtype=jnp.int32)[None]
    if wanted is not None:
        positions = jnp.where(jnp.arange(nodes)[None] < wanted, positions, NOWHERE)
    before = jnp.broadcast_to(cache.length[:, None], (batch, beside))
    others = {"beside": (tuple(earlier),), "beside_positions": before} if beside else {}
    run = jax.jit(lambda head, rows: head.drafted(target, *rows, positions, visible, cache, **others))
    out, ((k, v),), logits = run(head, rows)
    return [out, k, v, logits]


@DTYPES
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(
    "sizes",
    [{"batch": 1, "nodes": 1}, {"batch": 1, "nodes": 1, "beside": 4}, {"batch": 3, "nodes": 7, "beside": 9}],
    ids=str,
)
def test_a_pass_is_that_of_its_parts(dtype, bias, sizes, getkey, monkeypatch):
    head, target = head_of(dtype, getkey(), bias=bias), target_of(dtype, getkey())
    keys, taken = [getkey() for _ in range(5)], watched(monkeypatch)
    made = drafted(head, target, keys, **sizes)
    assert taken == ["head"]
    in_parts(monkeypatch)
    wanted = drafted(head, target, keys, **sizes)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=CLOSE * (1 + float(jnp.abs(other).max())))


@pytest.mark.parametrize("wanted", [0, 1, 4])
def test_rows_that_nobody_reads_are_zeros(wanted, getkey, monkeypatch):
    """As of a cycle's last rows, where fewer guesses were right."""
    head, target = head_of("bfloat16", getkey()), target_of("bfloat16", getkey())
    keys, taken = [getkey() for _ in range(5)], watched(monkeypatch)
    out, k, v, logits = drafted(head, target, keys, batch=1, nodes=6, wanted=wanted)
    assert taken == ["head"]
    assert not out[:, wanted:].any() and not k[:, :, wanted:].any() and not v[:, :, wanted:].any()
    in_parts(monkeypatch)
    others = drafted(head, target, keys, batch=1, nodes=6, wanted=wanted)
    for one, other, axis in zip((out, k, v, logits), others, (1, 2, 2, 1), strict=True):
        first = [np.take(np.asarray(part), np.arange(wanted), axis) for part in (one, other)]
        np.testing.assert_allclose(*first, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("drafts", [None, 50], ids=["the target's", "not whole strips"])
def test_logits_of_a_matrix_that_it_does_not_take_are_their_own_operation(drafts, getkey, monkeypatch):
    head, target = head_of("float32", getkey(), drafts=drafts), target_of("float32", getkey())
    keys, taken = [getkey() for _ in range(5)], watched(monkeypatch)
    made = drafted(head, target, keys)
    assert taken == ["head"] and made[3].shape[2] == (drafts or CONFIG.vocab_size)
    in_parts(monkeypatch)
    for one, other in zip(made, drafted(head, target, keys), strict=True):
        np.testing.assert_allclose(one, other, atol=CLOSE * (1 + float(jnp.abs(other).max())))


def rounded(head):
    stored = layout.as_stored(head.params)
    stored["fc"]["weight"] = quantise(stored["fc"]["weight"], Rounding(8), jnp.float32)
    return dataclasses.replace(head, params=layout.for_decoding(stored, CONFIG.head_dim))


@pytest.mark.parametrize(
    "changed",
    [{"num_hidden_layers": 2}, {"attention_bias": True}, {"mlp_bias": True}, {"head_dim": 48}, {"sliding_window": 50}],
    ids=str,
)
def test_a_head_that_it_is_not_made_for_is_left_to_the_parts(changed, getkey, monkeypatch):
    head = head_of("float32", getkey(), config=dataclasses.replace(CONFIG, **changed))
    target, taken = target_of("float32", getkey()), watched(monkeypatch)
    proposed(head, target, SureChain(5, 0.0), [getkey() for _ in range(3)])
    assert taken == []


def test_a_rounded_head_is_left_to_the_parts(getkey, monkeypatch):
    head, target = rounded(head_of("float32", getkey())), target_of("float32", getkey())
    taken = watched(monkeypatch)
    proposed(head, target, SureChain(5, 0.0), [getkey() for _ in range(3)])
    assert taken == []


def proposed(head, target, policy, keys, *, lengths=(70,), mode=GREEDY, temperature=0.0):
    """The tree that is drafted at the end of random text."""
    batch, size = len(lengths), head.config.layers.hidden_size
    cache = cache_of(head, keys[:2], lengths)
    state = EagleState(cache=cache, guess=3 * jax.random.normal(keys[2], (batch, size)))
    number = jnp.full(batch, temperature, jnp.float32)
    off = jnp.zeros(batch, jnp.float32)
    settings = Settings(number, off.astype(jnp.int32), off + 1, off, request_keys([0] * batch, [0] * batch))
    noise = jax.random.normal(keys[2], (batch, policy.depth, CONFIG.vocab_size)) if mode.sampled else None
    tokens = jnp.zeros((batch, SLOTS + 1), jnp.int32)
    view = View(tokens=tokens, length=cache.length, noise=noise, settings=settings)

    def run(head: Head, target: LM):
        return Eagle(head=head, policy=policy).propose(target, state, view, mode)[0]

    return jax.jit(run)(head, target)


@DTYPES
@pytest.mark.parametrize("others", ["float32", "bfloat16"], ids=lambda name: f"target in {name}")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own table"])
@pytest.mark.parametrize(
    "policy",
    [SureChain(7, 0.0), SureChain(7, 0.05), SureChain(3, 0.9), DynamicTree(6, 4, 1), DynamicTree(4, 5, 1)],
    ids=str,
)
def test_a_chain_is_that_of_its_passes(dtype, others, tied, policy, getkey, monkeypatch):
    head, target = head_of(dtype, getkey()), target_of(others, getkey(), tied=tied)
    keys, taken = [getkey() for _ in range(3)], watched(monkeypatch)
    made = proposed(head, target, policy, keys)
    assert taken == ["chain"]
    in_parts(monkeypatch)
    wanted = proposed(head, target, policy, keys)
    for name in ("valid", "parent"):
        np.testing.assert_array_equal(getattr(made, name), getattr(wanted, name))
    np.testing.assert_array_equal(made.tokens[made.valid], wanted.tokens[wanted.valid])
    if policy.as_chain.least == 0:
        assert made.valid.all() and len(np.unique(made.tokens)) > 2


@pytest.mark.parametrize(
    "changed", [{"num_key_value_heads": 4}, {"hidden_size": 48, "num_key_value_heads": 1}], ids=str
)
def test_a_chain_of_another_head_over_all_tokens(changed, getkey, monkeypatch):
    config = dataclasses.replace(CONFIG, **changed)
    head = head_of("float32", getkey(), config=config, drafts=config.vocab_size)
    target = target_of("float32", getkey(), config=dataclasses.replace(CONFIG, hidden_size=config.hidden_size))
    keys, taken = [getkey() for _ in range(3)], watched(monkeypatch)
    made = proposed(head, target, SureChain(6, 0.0), keys)
    assert taken == ["chain"] and head.vocabulary is None
    in_parts(monkeypatch)
    np.testing.assert_array_equal(made.tokens, proposed(head, target, SureChain(6, 0.0), keys).tokens)


@pytest.mark.parametrize(
    "policy, how, wanted",
    [
        (SureChain(5, 0.0), {"lengths": (70, 9)}, "head"),
        (SureChain(5, 0.0), {"mode": Sampling(sampled=True, filtered=False), "temperature": 1.0}, "head"),
        (DynamicTree(6, 2, 2), {}, "head"),
        (SureChain(2, 0.0), {}, None),
    ],
    ids=["two requests", "sampled", "another policy", "one guess"],
)
def test_other_drafts_go_pass_by_pass(policy, how, wanted, getkey, monkeypatch):
    """Where there is a pass at all: the first guess is of the root's feature."""
    head, target, taken = head_of("float32", getkey()), target_of("float32", getkey()), watched(monkeypatch)
    proposed(head, target, policy, [getkey() for _ in range(3)], **how)
    assert set(taken) == ({wanted} if wanted else set())


def test_a_root_that_has_no_law_is_the_only_node(getkey):
    """With nan for its feature no guess is one, and nothing is drafted below it."""
    head, target = head_of("float32", getkey()), target_of("float32", getkey())
    cache = cache_of(head, [getkey(), getkey()], (70,))
    guess = jnp.full((1, CONFIG.hidden_size), jnp.nan)
    run = jax.jit(lambda head: head.chain(target, guess, cache.length, cache, 4, sharpness=2.0, least=-jnp.inf))
    scores, tokens = run(head)
    assert (scores == -jnp.inf).all() and not tokens[:, 1:].any()
