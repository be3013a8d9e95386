"""Losses of DFlash heads and their gradients against an independent PyTorch writing, block by block."""

import dataclasses
import functools
import importlib
import json
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
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
    Case,
    state,
    text,
)

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.lm import LM
from eagle_jax.training.dflash_loss import dflash_loss
from eagle_jax.training.objective import Objective

pytestmark = pytest.mark.parity

GOLDEN = pathlib.Path(__file__).with_name("golden_dflash_losses.npz")
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


def answers(case: Case, source: str) -> dict[str, np.ndarray]:
    """What PyTorch computes: from the golden file, or here and now."""
    if source == "live":
        pytest.importorskip("torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("dflash_torch").answers(case)
    with np.load(GOLDEN) as file:
        stored = json.loads(str(file[f"{case}/case"]))
        assert stored == case.entries, f"case {case} has changed; run tests/training/make_dflash_golden.py"
        own = [name for name in file.files if name.startswith(f"{case}/") and not name.endswith("/case")]
        return {name.removeprefix(f"{case}/"): file[name] for name in own}


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


@pytest.mark.parametrize("source", ("golden", "live"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_dflash_loss_and_gradients(case: Case, source: str):
    expected, (value, agreement, gradients) = answers(case, source), ours(str(case))
    np.testing.assert_allclose(value, expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(agreement, expected["agreement"], rtol=1e-6)
    assert {f"gradient/{name}" for name in gradients} == {name for name in expected if name.startswith("gradient/")}
    for name, gradient in gradients.items():
        largest = float(np.abs(expected[f"gradient/{name}"]).max())
        assert largest > 0, f"{name} is not trained"
        np.testing.assert_allclose(gradient, expected[f"gradient/{name}"], atol=1e-5 + 1e-4 * largest, err_msg=name)


@functools.cache
def ours(name: str) -> tuple[float, np.ndarray, dict[str, np.ndarray]]:
    """What PyTorch's `answers` gives for the case of that name."""
    case = next(case for case in CASES if str(case) == name)
    (target, head), given = made(case), jax.tree.map(jnp.asarray, text(case))
    features = jnp.concatenate([given["hidden"], *given["taps"]], axis=-1)
    objective = Objective(**case.objective, noise=0.0, anchors=LENGTH)

    @jax.jit
    def both(params):
        def value(params):
            whole = dataclasses.replace(head, params=params)
            return dflash_loss(whole, target, given["tokens"], given["answer"], features, jax.random.key(0), objective)

        return jax.value_and_grad(value, has_aux=True)(params)

    (value, report), gradients = both(head.params)
    named = {published(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)}
    return float(value), np.asarray(report.agreement), named
