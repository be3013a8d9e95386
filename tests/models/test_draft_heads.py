"""Draft heads by themselves: their parameters, their vocabularies, and what they refuse."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.heads import Eagle3Config, EagleConfig
from eagle_jax.configs.target import Experts, Rope
from eagle_jax.models import layout
from eagle_jax.models.cache import KVState
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import causal
from eagle_jax.models.target import PADDING_POSITION
from eagle_jax.testing import TINY, cpu_backend, synthetic_pair

LAYERS = dataclasses.replace(TINY, num_hidden_layers=2)
EXPERTS = Experts(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, norm_topk_prob=True)
WIDE = Eagle3Config(layers=LAYERS, taps=(0, 1, 2), target_hidden_size=32, draft_vocab_size=61)


def shapes(config: Eagle3Config | EagleConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of a head's parameters by path."""
    kind = Head if isinstance(config, EagleConfig) else Head3
    head = jax.eval_shape(functools.partial(kind.init, config), jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(head.params)
    return {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}


def test_parameters_of_an_eagle3_head():
    first, second = "layers_0", "layers_1"
    mlp = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
    assert shapes(WIDE) == {
        "fc/weight": (32, 96),
        **{f"{first}/{norm}/scale": (32,) for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
        **{f"{first}/self_attn/{x}_proj/weight": (rows, 64) for x, rows in (("q", 32), ("k", 16), ("v", 16))},
        f"{first}/self_attn/o_proj/weight": (32, 32),
        **{f"{second}/{norm}/scale": (32,) for norm in ("input_layernorm", "post_attention_layernorm")},
        **{f"{second}/self_attn/{x}_proj/weight": (rows, 32) for x, rows in (("q", 32), ("k", 16), ("v", 16))},
        f"{second}/self_attn/o_proj/weight": (32, 32),
        **{f"{layer}/mlp/{name}/weight": shape for layer in (first, second) for name, shape in mlp.items()},
        "norm/scale": (32,),
        "lm_head/weight": (61, 32),
    }


@pytest.mark.parametrize(
    "flags, more",
    [
        ({"fc_norm": True}, {f"fc_norm_{i}/scale": (32,) for i in range(3)}),
        ({"norm_before_fc": True}, {"input_norm/scale": (96,)}),
        ({"own_embedding": True}, {"embed_tokens/embedding": (61, 32)}),
        ({"norm_before_residual": True, "norm_output": True}, {}),
        ({"draft_vocab_size": 20}, {"lm_head/weight": (20, 32)}),
        (
            {"target_hidden_size": 24, "own_embedding": True},
            {"fc/weight": (32, 72), "embed_tokens/embedding": (61, 32)},
        ),
    ],
)
def test_what_each_flag_adds(flags, more):
    assert shapes(dataclasses.replace(WIDE, **flags)) == shapes(WIDE) | more


def test_a_head_of_part_of_the_vocabulary_knows_which():
    config = EagleConfig(layers=TINY, fc_bias=False, draft_vocab_size=7)
    head = jax.eval_shape(functools.partial(Head.init, config), jax.random.key(0))
    assert head.params["lm_head"]["weight"].shape == (7, 32) and head.draft_vocab_size == 7
    head = Head(params=head.params, config=config, vocabulary=jnp.asarray([1, 4, 8, 9, 30, 31, 60]))
    np.testing.assert_array_equal(head.target_ids(jnp.asarray([[0, 2], [6, 5]])), [[1, 8], [60, 31]])
    np.testing.assert_array_equal(head.drafted_part(jnp.arange(61.0)[None]), [[1, 4, 8, 9, 30, 31, 60]])
    with pytest.raises(ValueError, match="draft_vocab_size=7 came with 6 target ids"):
        dataclasses.replace(head, vocabulary=jnp.arange(6))
    with pytest.raises(ValueError, match="draft_vocab_size=7 came with 61 target ids"):
        dataclasses.replace(head, vocabulary=None)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"taps": ()}, "at least one target layer"),
        ({"taps": (1, -1, 2)}, "at least one target layer"),
        ({"target_hidden_size": 0}, "target_hidden_size=0"),
        ({"target_hidden_size": 24}, "own_embedding"),
        ({"draft_vocab_size": 62}, "draft_vocab_size=62; expected 1 to 61"),
        ({"draft_vocab_size": 0}, "draft_vocab_size=0"),
        ({"fc_norm": True, "norm_before_fc": True}, "at most one norm"),
        ({"layers": dataclasses.replace(LAYERS, experts=EXPERTS)}, "draft head have experts"),
        (
            {"layers": dataclasses.replace(LAYERS, norms="after", sinks=True)},
            "have norms='after', sinks=True; expected",
        ),
        (
            {"layers": dataclasses.replace(LAYERS, rope=Rope(theta=1e4, partial_rotary_factor=0.5))},
            "rotate their heads",
        ),
        ({"layers": dataclasses.replace(LAYERS, sliding_window=4, full_attention_layers=(1,))}, "share one window"),
    ],
)
def test_impossible_heads_are_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(WIDE, **flags)


def test_a_trimmed_head_is_the_head_on_fewer_tokens():
    target, head = synthetic_pair()
    out = jax.random.normal(jax.random.key(0), (1, 3, 32))
    whole = head.logits(target, out)
    for ids in (np.arange(61), np.array([0, 3, 17, 60])):
        trimmed = head.trimmed(target, ids)
        assert trimmed.draft_vocab_size == len(ids)
        np.testing.assert_allclose(trimmed.logits(target, out), whole[..., ids], rtol=1e-5)
        np.testing.assert_array_equal(trimmed.target_ids(jnp.arange(len(ids))), ids)


@pytest.mark.parametrize("ids", [[], [3, 2], [1, 1], [-1, 4], [5, 61]], ids=str)
def test_ids_that_are_no_draft_vocabulary_are_refused(ids):
    target, head = synthetic_pair()
    with pytest.raises(ValueError, match=r"ascend within 0 \.\. 60"):
        head.trimmed(target, np.array(ids, int))


@pytest.mark.matrix
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("laid_out", [False, True], ids=["as stored", "laid out"])
def test_keys_and_values_alone_are_those_of_a_whole_pass(kind, layers, laid_out):
    """Also behind a cache and where the last slots of the only request are not wanted; what those get is nobody's."""
    stack = dataclasses.replace(TINY, num_hidden_layers=layers, qk_norm=kind == "eagle3", head_dim=32)
    if kind == "eagle":
        head: Head | Head3 = Head.init(EagleConfig(layers=stack, fc_bias=True), jax.random.key(0))
    else:
        config = Eagle3Config(layers=stack, taps=(0, 1, 2), target_hidden_size=32, draft_vocab_size=61)
        head = Head3.init(config, jax.random.key(0))
    head = dataclasses.replace(head, params=jax.tree.map(lambda leaf: 4 * leaf, head.params))
    if laid_out:
        head = dataclasses.replace(head, params=layout.for_decoding(head.params, head.head_dim))
    slots, wanted = 9, 6
    embeddings, features = jax.random.normal(jax.random.key(1), (2, 1, slots, 32))
    cache = head.empty_cache(1, 64)
    k, v = jax.random.normal(jax.random.key(2), (2, *cache.k[0].shape))
    cache = dataclasses.replace(cache, layers=(KVState(k, v),) * layers, length=jnp.asarray([5], jnp.int32))
    steps, chain = causal(1, slots)
    positions = jnp.where(steps < wanted, steps + 5, PADDING_POSITION)
    given = embeddings, features, positions, chain, cache
    _, whole = jax.jit(type(head).forward)(head, *given)
    alone = jax.jit(type(head).keys_and_values)(head, *given)
    assert len(alone) == layers
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(alone), strict=True):
        assert np.abs(one[:, :, :wanted]).max() > 0.01
        np.testing.assert_allclose(one[:, :, :wanted], other[:, :, :wanted], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(cpu_backend() is None, reason="nothing is laid out for machine code")
def test_a_chunk_of_a_prompt_takes_no_attention_where_layers_are_laid_out(getkey):
    """There a layer's first half is one operation, out of which XLA could leave nothing. Rows behind those that are
    wanted are as if they were zeros.
    """
    stack = dataclasses.replace(TINY, head_dim=32, num_hidden_layers=1)
    head = Head.init(EagleConfig(layers=stack, fc_bias=False), jax.random.key(0))
    head = dataclasses.replace(head, params=layout.for_decoding(head.params, head.head_dim))
    rows = jax.random.normal(getkey(), (2, 1, 9, 32))
    steps, chain = causal(1, 9)
    given = jnp.where(steps < 6, steps, PADDING_POSITION), chain, head.empty_cache(1, 16)
    alone, whole = jax.jit(Head.keys_and_values), jax.jit(Head.forward)
    assert "eagle_jax_attention_block" in whole.lower(head, *rows, *given).as_text()
    assert "eagle_jax_attention_block" not in alone.lower(head, *rows, *given).as_text()
    k, v = alone(head, *rows, *given)[0]
    assert np.abs(v[:, :, :6]).min(axis=-1).max() > 0
    for part in (k, v):
        np.testing.assert_array_equal(part[:, :, 6:], 0)
