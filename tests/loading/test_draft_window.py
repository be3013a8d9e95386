"""A window of a draft head's attention, chosen when it is loaded: the draft changes, the text does not."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import settings_of

import eagle_jax
from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, MaskConfig
from eagle_jax.converters import convert, load_head, save_head, save_target
from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import CommittedRows, View
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.hydra import HydraDrafter
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.eagle3 import Head3
from eagle_jax.testing import TINY, synthetic_head3, synthetic_hydra, synthetic_medusa, synthetic_pair

TARGET, HEAD = synthetic_pair(strength=0.3)
PROMPT = np.random.default_rng(0).integers(0, TINY.vocab_size, 40).tolist()


def peagle() -> Head3:
    layers = dataclasses.replace(TINY, num_hidden_layers=2)
    sizes = {"target_hidden_size": 32, "draft_vocab_size": 61, "own_embedding": True}
    config = Eagle3Config(layers=layers, taps=(0, 1, 2), mask=MaskConfig(token_id=60, num_drafted=3), **sizes)
    return large(Head3.init(config, jax.random.key(0)))


def dflash() -> DFlash:
    layers = dataclasses.replace(TINY, qk_norm=True)
    sizes = {"target_hidden_size": 32, "block_size": 4, "mask_token_id": 60, "num_target_layers": 2}
    return large(DFlash.init(DFlashConfig(layers=layers, taps=(0, 1, 2), **sizes), jax.random.key(0)))


def large(head: Any) -> Any:
    """Weights that are large enough for what attention sees to matter."""
    return dataclasses.replace(head, params=jax.tree.map(lambda x: x * 10 if x.ndim == 2 else x, head.params))


HEADS: dict[str, tuple[Callable[[], Any], Any]] = {
    "EAGLE-1": (lambda: large(HEAD), Eagle),
    "EAGLE-3": (lambda: synthetic_head3(TARGET, error=0.5), Eagle),
    "P-EAGLE": (peagle, PEagle),
    "DFlash": (dflash, DFlashDrafter),
    "Hydra++": (lambda: large(synthetic_hydra(TARGET, prefix=True)), HydraDrafter),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("target")
    save_target(TARGET, folder)
    return folder


def window_of(head: AnyHead) -> int | None:
    layers = head.config.prefix if hasattr(head.config, "prefix") else head.config.layers
    return layers.sliding_window


@jax.jit
def proposed(drafter: Any) -> jax.Array:
    """Tokens of the tree behind the prompt."""
    tokens = jnp.asarray([PROMPT], jnp.int32)
    output, count = TARGET.causal(tokens, drafter.taps), tokens.shape[1] - 1
    rows = {"hidden": output.hidden[:, :-1], "taps": tuple(tap[:, :-1] for tap in output.taps)}
    start, length = jnp.zeros(1, jnp.int32), jnp.full(1, count, jnp.int32)
    observed = CommittedRows(start=start, count=length, tokens=tokens[:, :-1], following=tokens[:, 1:], **rows)
    state = drafter.observe(TARGET, drafter.init(TARGET, 1, 64), observed)
    view = View(tokens=jnp.pad(tokens, ((0, 0), (0, 8))), length=length, noise=None, settings=settings_of(1))
    return drafter.propose(TARGET, state, view, sampling.GREEDY)[0].tokens


@pytest.mark.matrix
@pytest.mark.parametrize("kind", HEADS)
def test_the_draft_changes(kind: str, tmp_path: pathlib.Path):
    """With a window that is smaller than the text; one that is larger changes nothing."""
    head, drafter = HEADS[kind]
    save_head(head(), tmp_path / "head", target_name="owner/model", target=TARGET)
    drafts = {}
    for window in (None, 4, 200) if kind in ("EAGLE-3", "DFlash") else (None, 4):
        changes = {} if window is None else {"sliding_window": window}
        loaded = load_head(tmp_path / "head", TARGET, changes=changes)
        assert window_of(loaded) == window
        drafts[window] = proposed(drafter(head=loaded, policy=DynamicTree(9, 1, 4))).tolist()
    assert drafts[4] != drafts[None] == drafts.get(200, drafts[None])


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["EAGLE-3", "P-EAGLE", "DFlash"])
def test_the_text_does_not(kind: str, target: pathlib.Path, tmp_path: pathlib.Path):
    """With a window, and where it is as long as the longest that the head's config states, or longer: the rotary
    embedding goes on behind it.
    """
    save_head(HEADS[kind][0](), tmp_path / "head", target_name="owner/model", target=TARGET)
    path = tmp_path / "head" / "config.json"
    entries = json.loads(path.read_text())
    entries.get("transformer_layer_config", entries)["max_position_embeddings"] = len(PROMPT)
    path.write_text(json.dumps(entries))
    model = eagle_jax.load(target, tmp_path / "head", head_config={"sliding_window": 4} if kind == "EAGLE-3" else {})
    assert model.head.config.layers.max_position_embeddings == len(PROMPT)
    ask = {"max_new_tokens": 8, "temperature": 0.5, "seed": 1}
    prompts = [PROMPT[:-1], PROMPT, [*PROMPT, 5]]
    drafted = eagle_jax.generate(model, prompts, tree=(9, 1, 4), **ask)
    assert [one.token_ids for one in drafted] == [
        one.token_ids for one in eagle_jax.generate(model, prompts, drafter="none", **ask)
    ]


def test_however_configs_state_windows(target: pathlib.Path, tmp_path: pathlib.Path):
    """One that is switched off, one by layer, and one in a nested config; None takes it away."""
    save_head(HEADS["EAGLE-3"][0](), tmp_path / "flat", format="safeailab")
    path = tmp_path / "flat" / "config.json"
    stated = json.loads(path.read_text()) | {"sliding_window": None, "use_sliding_window": False}
    path.write_text(json.dumps(stated))
    windowed = {"sliding_window": 8}
    assert load_head(tmp_path / "flat", TARGET, changes=windowed).config.layers.sliding_window == 8
    convert(tmp_path / "flat", tmp_path / "nested", "speculators", target=target, changes=windowed)
    assert load_head(tmp_path / "nested", TARGET).config.layers.sliding_window == 8
    for window in (None, 5):
        head = load_head(tmp_path / "nested", TARGET, changes={"sliding_window": window})
        assert head.config.layers.sliding_window == window
    by_layer = dataclasses.replace(TINY, qk_norm=True, sliding_window=6, full_attention_layers=(0,))
    mixed = DFlash.init(dataclasses.replace(dflash().config, layers=by_layer, causal_layers=(1,)), jax.random.key(0))
    save_head(mixed, tmp_path / "mixed")
    assert load_head(tmp_path / "mixed", TARGET).config == mixed.config
    read = load_head(tmp_path / "mixed", TARGET, changes=windowed).config
    assert [read.layers.window(i) for i in range(2)] == [8, 8] and read.causal_layers == (1,)


def test_windows_that_cannot_be(tmp_path: pathlib.Path):
    save_head(HEAD, tmp_path / "eagle", target=TARGET)
    for window in (0, -3, 2.5, "512", True):
        with pytest.raises(ValueError, match="sliding_window=.*; expected how many rows of the text"):
            load_head(tmp_path / "eagle", TARGET, changes={"sliding_window": window})
    for name, head in (("medusa", synthetic_medusa(TARGET)), ("hydra", synthetic_hydra(TARGET))):
        save_head(head, tmp_path / name, target_name="owner/model")
        with pytest.raises(ValueError, match="which do not attend to the text; leave it out"):
            load_head(tmp_path / name, TARGET, changes={"sliding_window": 8})
