"""Folders that `quantize` writes, read by transformers with compressed-tensors: `make readers`.

Symmetric ones alone: transformers 5.24 makes room for zero points that are not packed, so it reads no asymmetric files,
not even those of compressed-tensors. Their words are compared in tests/converters/test_requantizing.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.converters import load_target, save_target
from eagle_jax.converters.quantizing import quantize
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # what the libraries warn of is their own

CONFIG = dataclasses.replace(TINY, hidden_size=128, intermediate_size=256, head_dim=32)  # groups of 128 divide these
TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 12)).astype(np.int32)


@pytest.mark.parametrize("to", ["int8", "int4", "int4-128"])
def test_logits_are_ours(to, tmp_path):
    params = LM.init(CONFIG, jax.random.key(0)).params
    target = LM(params=jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim == 2 else leaf, params), config=CONFIG)
    save_target(target, tmp_path / "target")
    quantize(tmp_path / "target", tmp_path / to, to)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / to, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor(TOKENS)).logits.numpy()
    assert _distance(load_target(tmp_path / to), theirs) < 1e-5
    assert _distance(target, theirs) > 1e-3, "the comparison can fail"


def _distance(target: LM, theirs: np.ndarray) -> float:
    """The largest difference of a logit, relative to the largest logit."""
    return float(np.abs(target(jnp.asarray(TOKENS))[1] - theirs).max() / np.abs(theirs).max())
