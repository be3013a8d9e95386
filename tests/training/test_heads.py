"""What a run begins with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import CONFIG, head3, pair

from eagle_jax.configs.target import Latent, Rope
from eagle_jax.converters import save_head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.heads import Hydra, Medusa
from eagle_jax.models.lm import LM
from eagle_jax.training.eagle_heads import shapes
from eagle_jax.training.heads import first
from eagle_jax.training.initial_head import taps_of
from eagle_jax.training.settings import HeadConfig

KEY = jax.random.key(3)


def test_sizes_are_the_targets_unless_given():
    target, _ = pair()
    head = first(HeadConfig(intermediate_size=40, bias=False), target, None, KEY)
    layers = head.config.layers
    assert (layers.hidden_size, layers.intermediate_size, layers.num_hidden_layers) == (16, 40, 1)
    assert not head.config.fc_bias and head.vocabulary is None


@pytest.mark.parametrize("method", ["eagle1", "eagle3"])
def test_attention_may_be_narrower_than_the_targets(method):
    target, _ = pair()
    head = first(HeadConfig(method=method, num_attention_heads=1, num_key_value_heads=1), target, None, KEY)
    assert (head.config.layers.num_attention_heads, head.config.layers.num_key_value_heads) == (1, 1)
    assert head.config.layers.head_dim == target.config.head_dim
    with pytest.raises(ValueError, match="num_attention_heads=3 is not a multiple of num_key_value_heads=2"):
        first(HeadConfig(method=method, num_attention_heads=3, num_key_value_heads=2), target, None, KEY)


@pytest.mark.parametrize("hidden, heads, kv_heads", [(7168, 56, 8), (2048, 16, 8), (1536, 12, 4), (96, 1, 1)])
def test_a_target_with_latent_attention_gets_a_head_with_heads_of_its_own(hidden: int, heads: int, kv_heads: int):
    """Of DeepSeek-V3's width those of SpecForge's published config: 56 heads of 128, 8 for keys and values."""
    latent = Latent(rank=512, query_rank=1536, plain_dim=128, value_dim=128)
    facts = {"num_attention_heads": 128, "num_key_value_heads": 128, "head_dim": 64, "latent": latent}
    facts |= {"hidden_size": hidden, "rope": Rope(theta=1e4, interleaved=True)}
    target = dataclasses.replace(CONFIG, **facts)
    layers = shapes(HeadConfig(method="eagle3"), target).config.layers
    size = min(128, hidden)
    assert (layers.num_attention_heads, layers.num_key_value_heads, layers.head_dim) == (heads, kv_heads, size)
    assert layers.rope == Rope(theta=1e4)
    fewer = shapes(HeadConfig(method="eagle3", num_attention_heads=6), target).config.layers
    assert (fewer.num_attention_heads, fewer.num_key_value_heads, fewer.head_dim) == (6, 2, size)


def test_an_eagle3_head_begins_by_saying_what_the_target_would():
    """With a highest tap behind the last layer, and the layer's own share taken away, it is the target itself."""
    target, _ = pair()
    head = first(HeadConfig(method="eagle3"), target, None, KEY)
    assert head.taps == (0, 1, 2) and head.config.draft_vocab_size == 29
    tokens = jnp.arange(12, dtype=jnp.int32)[None]

    @jax.jit
    def agreement(target: LM, head: Head3) -> jax.Array:
        output = target.causal(tokens, head.taps)
        said = head.logits(target, head.features(output.hidden, output.taps))
        return jnp.mean(jnp.argmax(said, -1) == jnp.argmax(target.logits(output.hidden), -1))

    assert float(agreement(target, head)) > 0.5


@pytest.mark.parametrize("method", ["eagle1", "eagle3"])
def test_a_draft_vocabulary_has_rows_of_the_targets_output_matrix(method):
    target, _ = pair()
    ids = np.array([3, 5, 17], np.int32)
    head = first(HeadConfig(method=method), target, ids, KEY)
    np.testing.assert_array_equal(head.vocabulary, ids)
    np.testing.assert_array_equal(head.params["lm_head"]["weight"], target.params["embed_tokens"]["embedding"][ids])


def test_an_earlier_head_is_gone_on_from(tmp_path):
    target, head = pair()
    save_head(head, tmp_path / "head")
    again = first(HeadConfig(start=str(tmp_path / "head")), target, None, KEY)
    jax.tree.map(np.testing.assert_array_equal, again.params, head.params)


def test_an_earlier_head_that_drafts_all_tokens_can_be_cut_to_some(tmp_path):
    target, head = pair()
    save_head(head, tmp_path / "head")
    ids = np.array([3, 5, 17], np.int32)
    cut = first(HeadConfig(start=str(tmp_path / "head"), draft_vocab_size=3), target, ids, KEY)
    np.testing.assert_array_equal(cut.vocabulary, ids)
    jax.tree.map(np.testing.assert_array_equal, {**cut.params, "lm_head": None}, {**head.params, "lm_head": None})
    save_head(cut, tmp_path / "cut")
    with pytest.raises(ValueError, match="draft_vocab_size=2, and the head .* drafts 3 tokens of its own; leave"):
        first(HeadConfig(start=str(tmp_path / "cut"), draft_vocab_size=2), target, ids[:2], KEY)


def test_an_earlier_head_of_another_method_is_refused(tmp_path):
    target, head = pair()
    save_head(head, tmp_path / "head")
    with pytest.raises(ValueError, match="holds a head of eagle1 and head.method is eagle3; set head.method: eagle1"):
        first(HeadConfig(method="eagle3", start=str(tmp_path / "head")), target, None, KEY)
    save_head(head3(drafted=29), tmp_path / "head3")
    with pytest.raises(ValueError, match="holds a head of eagle3 and head.method is eagle1; set head.method: eagle3"):
        first(HeadConfig(start=str(tmp_path / "head3")), target, None, KEY)


def test_taps_are_the_published_ones_or_those_asked_for():
    assert taps_of(HeadConfig(), 32) == (2, 16, 29) and taps_of(HeadConfig(), 2) == (0, 1, 2)
    assert taps_of(HeadConfig(method="eagle3", taps=(1, 4)), 4) == (1, 4)
    with pytest.raises(ValueError, match=r"head.taps=\(5,\); expected layers 0 to 3, or 4"):
        taps_of(HeadConfig(method="eagle3", taps=(5,)), 4)
    with pytest.raises(ValueError, match="with method eagle3; expected eagle1, since other earlier heads keep their"):
        HeadConfig(method="eagle3", start="head", draft_vocab_size=3)


@pytest.mark.matrix
@pytest.mark.parametrize("settings", [{"method": "medusa"}, {"method": "hydra"}, {"method": "hydra", "prefix": True}])
def test_heads_side_by_side_begin_by_saying_again_what_the_target_says(settings: dict, tmp_path):
    """Their blocks pass on the hidden state, or what the layer before them makes of it, to the target's own matrix."""
    target, _ = pair()
    head = first(HeadConfig(layers=2, **settings), target, None, KEY, steps=3)
    assert isinstance(head, Medusa | Hydra) and head.config.num_heads == 3 and head.config.num_layers == 2

    @jax.jit
    def both(target: LM, head: Medusa | Hydra) -> tuple[jax.Array, jax.Array]:
        hidden = target.causal(jnp.arange(12, dtype=jnp.int32)[None]).hidden
        read = head.over_text(hidden, jnp.zeros_like(hidden))
        return head.logits(2, read[2]), target.logits(read[2][..., :16])

    said, expected = both(target, head)
    assert float(jnp.max(jnp.abs(said - expected))) < 0.2 * float(jnp.max(jnp.abs(expected)))
    save_head(head, tmp_path / "head")
    again = first(HeadConfig(method=settings["method"], start=str(tmp_path / "head")), target, None, KEY)
    assert again.config == head.config
    jax.tree.map(np.testing.assert_array_equal, again.params, head.params)


def test_what_other_methods_alone_have():
    with pytest.raises(ValueError, match="draft_vocab_size=5 with method medusa; expected none"):
        HeadConfig(method="medusa", draft_vocab_size=5)
    with pytest.raises(ValueError, match="head.prefix with method eagle1; expected hydra"):
        HeadConfig(prefix=True)
