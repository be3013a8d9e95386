"""Published heads: configs built from the facts have the published shapes and parameter counts.

Counts and file sizes are those of the hub's listings; files hold the embedding where the format does.
"""

import dataclasses
import math
from typing import Any

import jax
import pytest

from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import known_pair, names
from eagle_jax.converters.heads import dflash, eagle
from eagle_jax.converters.heads.eagle_formats import MIDLAYER, PLAIN
from eagle_jax.converters.hub.pairs import PAIRS, SHIPPED


@dataclasses.dataclass(frozen=True)
class Fact:
    """What is published of a head.

    Attributes:
        pair: its name in the table of pairs.
        dimensions: width, MLP, query heads, key/value heads, target vocabulary.
        billions: parameters as listed.
        file: bytes of the file as listed, in gigabytes, and bytes of a number in it; None if not known.
    """

    pair: str
    dimensions: tuple[int, int, int, int, int]
    billions: float
    file: tuple[float, int] | None = None


EAGLE1 = (
    Fact("vicuna-7b-v1.3", (4096, 11008, 32, 32, 32000), 0.236, (1.47, 4)),
    Fact("vicuna-13b-v1.3-eagle1", (5120, 13824, 40, 40, 32000), 0.370),
    Fact("vicuna-33b-v1.3", (6656, 17920, 52, 13, 32000), 0.557),
    Fact("llama-2-7b-chat", (4096, 11008, 32, 32, 32000), 0.236),
    Fact("llama-2-13b-chat", (5120, 13824, 40, 40, 32000), 0.370),
    Fact("llama-2-70b-chat", (8192, 28672, 64, 8, 32000), 0.990),
    Fact("mixtral-8x7b-instruct", (4096, 14336, 32, 32, 32000), 0.277),
    Fact("llama-3-8b-instruct", (4096, 14336, 32, 8, 128256), 0.252, (1.55, 2)),
    Fact("llama-3-70b-instruct", (8192, 28672, 64, 8, 128256), 0.990, (4.08, 2)),
    Fact("llama-3.1-8b-instruct-eagle1", (4096, 14336, 32, 8, 128256), 0.252),
    Fact("qwen2-7b-instruct", (3584, 18944, 28, 28, 152064), 0.281, (1.65, 2)),
)
EAGLE3 = (
    Fact("llama-3.1-8b-instruct", (4096, 14336, 32, 8, 128256), 0.4247, (0.850, 2)),
    Fact("vicuna-13b-v1.3", (5120, 13824, 40, 40, 32000), 0.6383, (1.28, 2)),
    Fact("llama-3.3-70b-instruct", (8192, 28672, 64, 8, 128256), 1.403),
    Fact("deepseek-r1-distill-llama-8b", (4096, 14336, 32, 8, 128256), 0.4247),
)
DFLASH = ("qwen3-4b-dflash", "qwen3-8b-dflash")


def layer(fact: Fact, **more: Any) -> LlamaConfig:
    h, intermediate, heads, kv_heads, vocab = fact.dimensions
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=h,
        intermediate_size=intermediate,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=more.pop("head_dim", h // heads),
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope=Rope(theta=10000.0),
        **more,
    )


def eagle1(fact: Fact) -> EagleConfig:
    return EagleConfig(layers=layer(fact, qkv_bias="qwen2" in fact.pair), fc_bias="llama-3" not in fact.pair)


def eagle3(fact: Fact, **more: Any) -> Eagle3Config:
    width = fact.dimensions[0]
    return Eagle3Config(layers=layer(fact, **more), taps=(2, 16, 29), target_hidden_size=width, draft_vocab_size=32000)


def on_disk(config: EagleConfig | Eagle3Config) -> dict[str, tuple[int, ...]]:
    rules = (MIDLAYER if isinstance(config, Eagle3Config) else PLAIN).rules
    return names.expected(rules, eagle.shapes(config))


def count(config: EagleConfig | Eagle3Config) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(eagle.shapes(config)))


@pytest.mark.parametrize("fact", EAGLE1, ids=lambda fact: fact.pair)
def test_eagle1(fact: Fact):
    config, pair = eagle1(fact), known_pair(fact.pair)
    numbers = count(config)
    assert round(numbers / 1e9, 3) == fact.billions
    assert pair is not None and pair.head_sizes is not None and pair.head_sizes.count.total == numbers
    h, intermediate, heads, kv_heads, vocab = fact.dimensions
    if fact.file is not None:
        size, width = fact.file
        assert (numbers + vocab * h) * width / 1e9 == pytest.approx(size, rel=3e-3)
    kv = kv_heads * config.layers.head_dim
    shapes = {
        "fc.weight": (h, 2 * h),
        "layers.0.self_attn.q_proj.weight": (h, h),
        "layers.0.self_attn.k_proj.weight": (kv, h),
        "layers.0.self_attn.v_proj.weight": (kv, h),
        "layers.0.self_attn.o_proj.weight": (h, h),
        "layers.0.mlp.gate_proj.weight": (intermediate, h),
        "layers.0.mlp.up_proj.weight": (intermediate, h),
        "layers.0.mlp.down_proj.weight": (h, intermediate),
        "layers.0.post_attention_layernorm.weight": (h,),
    }
    if config.fc_bias:
        shapes["fc.bias"] = (h,)
    if config.layers.qkv_bias:
        shapes |= {f"layers.0.self_attn.{x}_proj.bias": (h if x == "q" else kv,) for x in "qkv"}
    assert on_disk(config) == shapes


@pytest.mark.parametrize("fact", EAGLE3, ids=lambda fact: fact.pair)
def test_eagle3(fact: Fact):
    config, pair = eagle3(fact), known_pair(fact.pair)
    numbers = count(config)
    assert round(numbers / 1e9, 4) == fact.billions
    assert pair is not None and pair.head_sizes is not None and pair.head_sizes.count.total == numbers
    h, intermediate, heads, kv_heads, vocab = fact.dimensions
    if fact.file is not None:
        size, width = fact.file
        mapping = 8 * 32000 + vocab if vocab > 32000 else 0
        assert (numbers * width + mapping) / 1e9 == pytest.approx(size, rel=3e-3)
    kv = kv_heads * config.layers.head_dim
    assert on_disk(config) == {
        "fc.weight": (h, 3 * h),
        "midlayer.hidden_norm.weight": (h,),
        "midlayer.input_layernorm.weight": (h,),
        "midlayer.self_attn.q_proj.weight": (h, 2 * h),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * h),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * h),
        "midlayer.self_attn.o_proj.weight": (h, h),
        "midlayer.mlp.gate_proj.weight": (intermediate, h),
        "midlayer.mlp.up_proj.weight": (intermediate, h),
        "midlayer.mlp.down_proj.weight": (h, intermediate),
        "midlayer.post_attention_layernorm.weight": (h,),
        "norm.weight": (h,),
        "lm_head.weight": (32000, h),
    }


@pytest.mark.parametrize(
    ("dimensions", "q"),
    [
        ((5120, 25600, 64, 8, 151936), (8192, 10240)),
        ((2560, 9728, 32, 8, 151936), (4096, 5120)),
        ((5120, 32768, 40, 8, 202048), (5120, 10240)),
    ],
    ids=["Qwen3-32B", "Qwen3-4B", "Llama-4-Scout"],
)
def test_queries_have_heads_times_head_dim_rows(dimensions: tuple[int, int, int, int, int], q: tuple[int, int]):
    config = eagle3(Fact("", dimensions, 0.0), head_dim=128)
    assert on_disk(config)["midlayer.self_attn.q_proj.weight"] == q


def test_every_known_size_is_a_fact():
    known = {pair.name for pair in PAIRS if pair.head_sizes and not pair.head.startswith(SHIPPED)}
    assert known == {fact.pair for fact in EAGLE1 + EAGLE3} | set(DFLASH)


@pytest.mark.parametrize("name", DFLASH)
def test_dflash(name: str):
    """The 8B's file is known to have 2.1 GB in bfloat16."""
    pair = known_pair(name)
    assert pair is not None and pair.head_sizes is not None
    config, numbers = pair.head_sizes.config, pair.head_sizes.count.total
    assert isinstance(config, DFlashConfig) and config.taps == (2, 10, 18, 26, 34)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(dflash.shapes(config))) == numbers
    if name == "qwen3-8b-dflash":
        assert 2 * numbers / 1e9 == pytest.approx(2.1, rel=3e-3)
