"""Heads that this package writes, read by the speculators library: `make readers`."""

import dataclasses
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.configs.heads import Eagle3Config
from eagle_jax.converters import load_head, save_head, save_target
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

pytest.importorskip("speculators", reason="`make readers` installs it")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # what the library warns of is its own

LAYERS = dataclasses.replace(TINY, num_hidden_layers=1, vocab_size=97, max_position_embeddings=64)
PLAIN = Eagle3Config(layers=LAYERS, taps=(1, 3, 5), target_hidden_size=32, draft_vocab_size=40)
CONFIGS = {
    "plain": PLAIN,
    "norm before residual": dataclasses.replace(PLAIN, norm_before_residual=True),
    "norm before fc": dataclasses.replace(PLAIN, norm_before_fc=True),
    "EAGLE-3.1": dataclasses.replace(PLAIN, fc_norm=True, norm_output=True),
    "two layers": dataclasses.replace(PLAIN, layers=dataclasses.replace(LAYERS, num_hidden_layers=2)),
}
TOKENS, STEPS = 12, 2


@pytest.mark.parametrize("name", CONFIGS)
def test_the_library_drafts_what_we_draft(name, tmp_path):
    """Its logits over a text, and of a second draft step, equal ours."""
    torch = pytest.importorskip("torch")
    target = LM.init(dataclasses.replace(LAYERS, num_hidden_layers=6), jax.random.key(0), jnp.float32)
    head = _random_head(CONFIGS[name])
    save_target(target, tmp_path / "target")
    save_head(head, tmp_path / "head", format="speculators", target=target, target_name=str(tmp_path / "target"))
    tokens = np.append(np.random.default_rng(1).integers(0, LAYERS.vocab_size, TOKENS + 1), 0)  # theirs end with a 0
    taps = np.random.default_rng(2).standard_normal((1, TOKENS, 3, 32)).astype(np.float32)
    theirs = _their_logits(torch, tmp_path / "head", np.array(target.table), tokens, taps)
    ours = _our_logits(load_head(tmp_path / "head", target), target, tokens, taps)
    for step in range(STEPS):
        assert np.abs(ours[step] - theirs[step]).max() < 1e-4 * np.abs(theirs[step]).max()
    other = _our_logits(_random_head(CONFIGS[name], seed=9), target, tokens, taps)
    assert np.abs(other[0] - theirs[0]).max() > 0.1 * np.abs(theirs[0]).max(), "the comparison can fail"


def _random_head(config: Eagle3Config, seed: int = 3) -> Head3:
    """Random weights large enough to show, norms among them, and a draft vocabulary of every other token."""
    head = Head3.init(config, jax.random.key(seed), jnp.float32)
    draw = np.random.default_rng(seed).standard_normal
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.2 * draw(leaf.shape, np.float32)), head.params)
    return Head3(params=params, config=config, vocabulary=jnp.arange(40, dtype=jnp.int32) * 2 + 1)


def _our_logits(head: Head3, target: LM, tokens: np.ndarray, taps: np.ndarray) -> list[np.ndarray]:
    """Slot i has the feature of token i and the embedding of token i + 1; a second step reads the output of the one
    before and the token after, and sees that step's keys up to its own slot and its own.
    """
    feature = head.features(jnp.zeros((1, TOKENS, 32)), tuple(jnp.asarray(taps[:, :, i]) for i in range(3)))
    positions = jnp.arange(TOKENS, dtype=jnp.int32)[None]
    below = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))[None]
    own = jnp.eye(TOKENS, dtype=bool)[None]
    cache = head.empty_cache(1, 0)
    first_in = head.embed(target, jnp.asarray(tokens[None, 1 : TOKENS + 1], jnp.int32))
    out, rows = head.forward(first_in, feature, positions, below, cache)
    second_in = head.embed(target, jnp.asarray(tokens[None, 2 : TOKENS + 2], jnp.int32))
    visible = jnp.concatenate([below, own], axis=2)
    second, _ = head.forward(second_in, out, positions + 1, visible, cache, rows, positions)
    return [np.asarray(head.logits(target, each))[0] for each in (out, second)]


def _their_logits(
    torch: Any, folder: pathlib.Path, table: np.ndarray, tokens: np.ndarray, taps: np.ndarray
) -> list[np.ndarray]:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    from speculators import SpeculatorModel, SpeculatorModelConfig

    config = SpeculatorModelConfig.from_pretrained(str(folder))
    config.transformer_layer_config._attn_implementation = "eager"  # its own masks come in blocks of 128 tokens
    model = SpeculatorModel.from_pretrained(str(folder), config=config)
    # The head's files leave the embedding out, since it is the target's; the library reads it for trainings only.
    model.embed_tokens.weight.data = torch.tensor(table)
    found: list[np.ndarray] = []
    model.lm_head.register_forward_hook(lambda _, __, out: found.append(out.detach().float().numpy()[0]))
    ids = torch.tensor(tokens[None, 1 : TOKENS + 1])
    features = torch.tensor(taps.reshape(1, TOKENS, -1))
    with torch.no_grad():
        model(features, ids, torch.zeros_like(ids), ttt_steps=STEPS)
    return found
