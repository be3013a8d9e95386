"""Losses and their gradients against an independent PyTorch writing, in which tokens move and features stay."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from loss_cases import CASES, EPS, HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, THETA, VOCABULARY, state, text
from loss_parity import Case, answers, assert_agree, value_and_gradients

from eagle_jax.configs.heads import Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.training.loss import loss
from eagle_jax.training.objective import Objective

pytestmark = pytest.mark.parity

LAYERS = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_hidden_layers=1,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=64,
    rms_norm_eps=EPS,
    rope=Rope(theta=THETA),
)


def made(case: Case) -> tuple[LM, DraftHead]:
    """The case's head and a target with its matrices; of the target nothing else is asked."""
    drawn, given, drafted = state(case), text(case), case.entries["drafted"]
    matrices = {"embed_tokens": {"embedding": given["embedding"]}, "lm_head": {"weight": given["output"]}}
    target = LM(params=jax.tree.map(jnp.asarray, matrices), config=LAYERS)
    if case.entries["eagle3"]:
        norms = case.entries["norms"]
        config = Eagle3Config(
            layers=LAYERS,
            taps=(0, 1, 2),
            target_hidden_size=HIDDEN,
            draft_vocab_size=drafted or VOCABULARY,
            fc_norm=norms,
            norm_output=norms,
        )
        head: DraftHead = Head3.init(config, jax.random.key(0))
    else:
        head = Head.init(EagleConfig(layers=LAYERS, fc_bias=True, draft_vocab_size=drafted or None), jax.random.key(0))
    params = jax.tree_util.tree_map_with_path(lambda path, _: jnp.asarray(drawn[published(case, path)]), head.params)
    ids = jnp.asarray(given["drafted"], jnp.int32) if drafted else None
    return target, dataclasses.replace(head, params=params, vocabulary=ids)


def published(case: Case, path: tuple) -> str:
    """The name of a weight in a published head."""
    name = jax.tree_util.keystr(path, simple=True, separator=".").replace("scale", "weight")
    return name.replace("layers_0", "midlayer" if case.entries["eagle3"] else "layers.0").replace(
        "fc_norm_", "fc_norm."
    )


@pytest.mark.matrix
@pytest.mark.parametrize("source", ("golden", "live"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_and_gradients(case: Case, source: str):
    assert_agree(ours(case), answers(case, "eagle", source))


@functools.cache
def ours(case: Case) -> tuple:
    (target, head), given = made(case), jax.tree.map(jnp.asarray, text(case))
    features = jnp.concatenate([given["hidden"], *given["taps"]], axis=-1)
    objective = Objective(**case.objective, noise=0.0)

    def value(params):
        whole = dataclasses.replace(head, params=params)
        return loss(whole, target, given["tokens"], given["answer"], features, jax.random.key(0), objective)

    return value_and_gradients(value, head.params, functools.partial(published, case))
