"""Layers of one kind are one function of a program, and nothing that changes what is traced is forgotten."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from eagle_jax.configs.target import Experts
from eagle_jax.models.llama import DecoderLayer
from eagle_jax.models.lm import LM
from eagle_jax.sharding import sharding_of, traced_over
from eagle_jax.testing import TINY

CONFIG = dataclasses.replace(
    TINY, num_hidden_layers=4, vocab_size=64, rms_norm_eps=3e-5
)  # no other test's: traced here
EXPERTS = Experts(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=False, mlp_only_layers=(1, 3)
)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[DecoderLayer]:
    """The layers that were traced, one by one."""
    layers: list[DecoderLayer] = []
    call = DecoderLayer.__call__

    def recorded(self, *args):
        layers.append(self)
        return call(self, *args)

    monkeypatch.setattr(DecoderLayer, "__call__", recorded)
    return layers


def lowered(lm: LM, tokens: int) -> str:
    """The program of a pass over so many tokens, made anew."""
    return jax.jit(lambda lm, tokens: lm(tokens)[1]).lower(lm, jnp.zeros((2, tokens), jnp.int32)).as_text()


@pytest.mark.parametrize("kinds", [1, 2])
def test_layers_of_one_kind_are_traced_once(traced, kinds):
    experts = EXPERTS if kinds == 2 else None
    lm = LM.init(dataclasses.replace(CONFIG, experts=experts), jax.random.key(0))
    traced.clear()
    program = lowered(lm, 3)
    assert len(traced) == kinds
    assert program.count("call @_layer") == 4
    lowered(lm, 3)
    assert len(traced) == kinds
    lowered(lm, 5)
    assert len(traced) == 2 * kinds


def test_what_operations_read_beside_their_arguments_is_traced_anew(traced, monkeypatch):
    lm = LM.init(CONFIG, jax.random.key(0))
    traced.clear()
    plain = lowered(lm, 4)
    with traced_over(sharding_of("data:2,model:2", CONFIG)):
        assert lowered(lm, 4) != plain
    assert lowered(lm, 4) == plain
    monkeypatch.setenv("EAGLE_JAX_OPS", "tree_attention:xla")
    lowered(lm, 4)
    assert len(traced) == 3
