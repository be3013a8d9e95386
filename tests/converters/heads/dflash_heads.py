"""Small DFlash heads, and the same folder again after a second writing."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.configs.target import Rope
from eagle_jax.converters import names
from eagle_jax.converters.heads import dflash, dflash_config
from eagle_jax.converters.heads.vocabulary import mapping_tensors
from eagle_jax.models.dflash import DFlash
from tests.converters.folders import config

LAYERS = dataclasses.replace(config(), num_hidden_layers=3, head_dim=4, qk_norm=True, rope=Rope(theta=5e5))
WINDOWED = dataclasses.replace(LAYERS, sliding_window=5, full_attention_layers=(2,))
UNSTATED = DFlashConfig(layers=LAYERS, taps=(2, 1), target_hidden_size=8, block_size=4, mask_token_id=10)
PLAIN = dataclasses.replace(UNSTATED, num_target_layers=2)  # a target's layers, which speculators does not state


def filled(plain: DFlashConfig = PLAIN, **changes: Any) -> DFlash:
    """A head with some weights; one that drafts 5 tokens has a draft vocabulary."""
    made, draw = dataclasses.replace(plain, **changes), np.random.default_rng(0).standard_normal
    params = jax.tree.map(lambda leaf: jnp.asarray(draw(leaf.shape, np.float32)), dflash.shapes(made))
    ids = jnp.asarray([0, 2, 3, 7, 9], jnp.int32) if made.draft_vocab_size == 5 else None
    return DFlash(params=params, config=made, vocabulary=ids)


def tensors(head: DFlash) -> dict[str, np.ndarray]:
    """Its tensors as they lie on disk."""
    values = dict(names.tensors(dflash.RULES, head.params))
    return values if head.vocabulary is None else values | dict(mapping_tensors(np.asarray(head.vocabulary), 11))


def on_disk(head: DFlash) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and `config.json` in the authors' layout."""
    return tensors(head), dflash_config.entries_for(head.config, "float32")


def assert_same_files(left: pathlib.Path, right: pathlib.Path) -> None:
    """The files of the one folder are in the other, byte for byte."""
    for path in left.iterdir():
        assert path.read_bytes() == (right / path.name).read_bytes()
