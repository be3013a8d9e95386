"""A target and a head small enough to train in a test."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig, HydraConfig, MaskConfig, MedusaConfig
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.heads import Hydra, Medusa
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

F32 = jnp.dtype("float32")
SIZES = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
CONFIG = dataclasses.replace(TINY, **SIZES, max_position_embeddings=64, tie_word_embeddings=True)


def pair() -> tuple[LM, Head]:
    """Random weights, the target's scaled up so that its next-token distribution is not flat."""
    target = LM.init(CONFIG, jax.random.key(0), F32)
    target = dataclasses.replace(target, params=jax.tree.map(lambda p: p * 10 if p.ndim == 2 else p, target.params))
    layer = dataclasses.replace(CONFIG, num_hidden_layers=1)
    return target, Head.init(EagleConfig(layers=layer, fc_bias=True), jax.random.key(1), F32)


def head3(drafted: int, width: int = 16) -> Head3:
    """An EAGLE-3 head for the toy target that drafts every token but the lowest ids; random weights, not small."""
    layer = dataclasses.replace(CONFIG, num_hidden_layers=1, hidden_size=width, tie_word_embeddings=False)
    own = {"target_hidden_size": 16, "own_embedding": width != 16}
    config = Eagle3Config(layers=layer, taps=(0, 1, 2), draft_vocab_size=drafted, **own)
    head = Head3.init(config, jax.random.key(1), F32)
    params = jax.tree.map(lambda p: p * 10 if p.ndim == 2 else p, head.params)
    return Head3(params=params, config=config, vocabulary=jnp.arange(29 - drafted, 29) if drafted < 29 else None)


def medusa() -> Medusa:
    """Three Medusa heads for the toy target; random weights, not small."""
    head = Medusa.init(MedusaConfig(hidden_size=16, vocab_size=29, num_heads=3, num_layers=1), jax.random.key(2), F32)
    return dataclasses.replace(head, params=jax.tree.map(lambda p: p * 10, head.params))


def hydra() -> Hydra:
    """Three Hydra heads behind a layer, for the toy target; random weights, not small."""
    layer = dataclasses.replace(CONFIG, num_hidden_layers=1, tie_word_embeddings=False)
    config = HydraConfig(hidden_size=16, vocab_size=29, num_heads=3, num_layers=1, prefix=layer)
    head = Hydra.init(config, jax.random.key(3), F32)
    return dataclasses.replace(head, params=jax.tree.map(lambda p: p * 10 if p.ndim == 2 else p, head.params))


def peagle(**flags: Any) -> Head3:
    """A P-EAGLE head of two layers for the toy target, which drafts 4 tokens; random weights, not small."""
    layers = dataclasses.replace(CONFIG, tie_word_embeddings=False)
    sizes = {"layers": layers, "taps": (0, 1, 2), "target_hidden_size": 16, "draft_vocab_size": 29}
    sizes |= {"own_embedding": True, "mask": MaskConfig(token_id=28, num_drafted=4)}
    head = Head3.init(Eagle3Config(**sizes | flags), jax.random.key(4), F32)
    params = jax.tree.map(lambda p: p * 10 if p.ndim == 2 else p, head.params)
    return dataclasses.replace(head, params=params)


def dflash(**flags: Any) -> DFlash:
    """A DFlash head for the toy target, with blocks of 4; random weights, not small."""
    layers = dataclasses.replace(CONFIG, tie_word_embeddings=False, qk_norm=True)
    sizes = {"layers": layers, "taps": (0, 1, 2), "target_hidden_size": 16, "block_size": 4, "mask_token_id": 28}
    head = DFlash.init(DFlashConfig(**sizes | flags), jax.random.key(4), F32)
    return dataclasses.replace(head, params=jax.tree.map(lambda p: p * 10 if p.ndim == 2 else p, head.params))
