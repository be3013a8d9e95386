"""Losses of DFlash heads and their gradients against an independent PyTorch writing, block by block."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from dflash_cases import (
    BLOCK,
    CANDIDATES,
    CASES,
    EPS,
    GROUP,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    LAYERS,
    LENGTH,
    MASK,
    RANK,
    TAPS,
    THETA,
    VOCABULARY,
    state,
    text,
)
from loss_parity import Case, answers, assert_agree, value_and_gradients

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.lm import LM
from eagle_jax.training.dflash_loss import dflash_loss
from eagle_jax.training.objective import Objective

pytestmark = pytest.mark.parity

SIZES = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=64,
    rms_norm_eps=EPS,
    rope=Rope(theta=THETA),
    qk_norm=True,
)


def made(case: Case) -> tuple[LM, DFlash]:
    """The case's head and a target with its matrices; of the target nothing else is asked."""
    drawn, given, drafted = state(case), text(case), case.entries["drafted"]
    matrices = {"embed_tokens": {"embedding": given["embedding"]}, "lm_head": {"weight": given["output"]}}
    target = LM(params=jax.tree.map(jnp.asarray, matrices), config=SIZES)
    config = DFlashConfig(
        layers=SIZES,
        taps=tuple(range(TAPS)),
        target_hidden_size=HIDDEN,
        block_size=BLOCK,
        mask_token_id=MASK,
        causal_layers=tuple(range(LAYERS)) if case.entries["causal"] else (),
        sample_from_anchor=case.entries["anchored"],
        draft_vocab_size=drafted or None,
        markov=MarkovConfig(RANK, case.entries["markov"]) if case.entries["markov"] else None,
        confidence=ConfidenceConfig(with_markov=True) if case.entries["confidence"] else None,
        convolution=ConvolutionConfig(2, GROUP) if case.entries["convolution"] else None,
        selector=SelectorConfig(RANK, CANDIDATES) if case.entries["selector"] else None,
    )
    head = DFlash.init(config, jax.random.key(0))
    params = jax.tree_util.tree_map_with_path(lambda path, _: jnp.asarray(drawn[published(path)]), head.params)
    ids = jnp.asarray(given["drafted"], jnp.int32) if drafted else None
    return target, dataclasses.replace(head, params=params, vocabulary=ids)


def published(path: tuple) -> str:
    """The name of a weight in a published head."""
    name = (
        jax.tree_util.keystr(path, simple=True, separator=".").replace("scale", "weight").replace("embedding", "weight")
    )
    return name.replace("layers_", "layers.")


@pytest.mark.matrix
@pytest.mark.parametrize("source", ("golden", "live"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_dflash_loss_and_gradients(case: Case, source: str):
    assert_agree(ours(case), answers(case, "dflash", source))


@functools.cache
def ours(case: Case) -> tuple:
    (target, head), given = made(case), jax.tree.map(jnp.asarray, text(case))
    features = jnp.concatenate([given["hidden"], *given["taps"]], axis=-1)
    objective = Objective(**case.objective, noise=0.0, anchors=LENGTH)

    def value(params):
        whole = dataclasses.replace(head, params=params)
        return dflash_loss(whole, target, given["tokens"], given["answer"], features, jax.random.key(0), objective)

    return value_and_gradients(value, head.params, published)
