"""Same seed, same text where a target is not like Llama: other norms, gpt-oss, recurrent layers, latents, Gemma 4."""

import dataclasses
import functools
import os
import tempfile

import jax
import jax.numpy as jnp
import pytest
import test_conformance as conformance
from test_conformance import backend  # noqa: F401  # a fixture

from eagle_jax.configs.target import ByLayer, DeltaNet, Experts, Latent, Rope
from eagle_jax.converters import load_target, save_target
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Plain
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.testing import synthetic_pair

EXPERTS = Experts(
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    norm_topk_prob=True,
    router_bias=True,
    bias=True,
    swiglu_limit=0.7,
)
YARN = Rope(theta=1e4, kind="yarn", factor=4.0, original_max_position_embeddings=32, truncate=False)
CONFIGS = {
    "olmo2": dataclasses.replace(conformance.CONFIG, norms="after", qk_norm=True, qk_norm_over="projection"),
    "gpt_oss": dataclasses.replace(
        conformance.CONFIG,
        sinks=True,
        sliding_window=6,
        full_attention_layers=(1,),
        attention_bias=True,
        intermediate_size=EXPERTS.moe_intermediate_size,
        experts=EXPERTS,
        rope=YARN,
        layout="gpt_oss",
    ),
    "llama4": dataclasses.replace(
        conformance.CONFIG,
        sliding_window=6,
        chunked=True,
        full_attention_layers=(1,),
        no_rope_layers=(1,),
        no_rope_query_beta=0.5,
        no_rope_query_step=5,
        qk_norm=True,
        qk_norm_over="rotated_head_unscaled",
        rope=Rope(theta=1e4, interleaved=True),
        experts=Experts(
            num_experts=4,
            num_experts_per_tok=1,
            moe_intermediate_size=32,
            norm_topk_prob=False,
            scores="sigmoid",
            shared_intermediate_size=32,
            scales_input=True,
        ),
        layout="llama4",
    ),
    "deepseek_v3": dataclasses.replace(
        conformance.CONFIG,
        num_key_value_heads=2,
        head_dim=8,
        rope=Rope(theta=1e4, interleaved=True),
        latent=Latent(rank=20, query_rank=24, plain_dim=16, value_dim=12),
        attention_multiplier=24**-0.5,
        experts=Experts(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
            mlp_only_layers=(0,),
            scores="sigmoid",
            correction_bias=True,
            num_groups=2,
            topk_groups=1,
            shared_intermediate_size=32,
        ),
        layout="deepseek_v3",
    ),
    "qwen3_5": dataclasses.replace(
        conformance.CONFIG,
        num_hidden_layers=3,
        rope=Rope(theta=1e4, partial_rotary_factor=0.25),
        qk_norm=True,
        norm_plus_one=True,
        gated=True,
        delta_net=DeltaNet(
            layers=(0, 2), num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=16, conv_kernel=4
        ),
        layout="qwen3_5",
    ),
    "gemma4": dataclasses.replace(
        conformance.CONFIG,
        num_hidden_layers=4,
        norms="around",
        activation="gelu_tanh",
        qk_norm=True,
        v_norm=True,
        attention_multiplier=1.0,
        embedding_multiplier=conformance.CONFIG.hidden_size**0.5,
        final_logit_softcapping=20.0,
        sliding_window=6,
        full_attention_layers=(1, 3),
        rope=Rope(theta=1e3, kind="proportional", partial_rotary_factor=0.5),
        local_rope=Rope(theta=1e2),
        by_layer=ByLayer(
            head_dim=64,
            num_key_value_heads=2,
            keys_as_values=True,
            num_kv_shared_layers=2,
            wide_mlp=True,
            input_size=16,
            input_vocab_size=conformance.CONFIG.vocab_size,
        ),
        experts=Experts(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
            parallel_mlp=True,
            router_scale=True,
            expert_scale=True,
        ),
        layout="gemma4",
    ),
}
HOWS = ("alone, greedy", "mixed")
# Recurrent states of some rows, and of shared nodes; layers that attend to keys of others, among such nodes.
MORE = {"qwen3_5": (conformance.IN_TURNS, conformance.SHARED), "gemma4": (conformance.SHARED,)}
DRAFTERS = {
    "eagle": lambda head: conformance.eagle(head, DynamicTree(12, 3, 4)),
    "garbage": lambda head: conformance.Garbage(),
}


@functools.cache
def pair(name: str) -> tuple[LM, DraftHead]:
    """What layers add stays small, and sinks and biases are large enough to matter."""
    target, head = synthetic_pair(CONFIGS[name], strength=0.3, error=0.15)
    keys = iter(jax.random.split(jax.random.key(7), 99))

    def changed(path: tuple, leaf: jax.Array) -> jax.Array:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        if "layernorm" in where and CONFIGS[name].norms == "after":
            return leaf * 0.15
        if "layernorm" in where and where.split("/")[1].startswith("post") and CONFIGS[name].norms == "around":
            return leaf * 0.3
        if where.endswith("layer_input/norm/scale"):
            return leaf * 0.3
        if where.endswith(("layer_scalar", "gate_scale", "expert_scale")):
            return leaf + 0.2 * jax.random.normal(next(keys), leaf.shape)
        if where.endswith(("bias", "sinks")):
            added_to_the_stream = where.endswith(("o_proj/bias", "down_bias"))
            return leaf + (0.05 if added_to_the_stream else 0.5) * jax.random.normal(next(keys), leaf.shape)
        return leaf

    return LM(params=jax.tree_util.tree_map_with_path(changed, target.params), config=target.config), head


@functools.cache
def plain(name: str, how: str, computed_by: str) -> tuple[list[list[int]], int]:
    return conformance.decoded(Plain(), how)


@pytest.mark.matrix
@pytest.mark.parametrize("backend", ["cpu", "xla"], indirect=True)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", CONFIGS)
def test_same_seed_same_text(name: str, drafter: str, backend: str, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    target, head = pair(name)
    laid = conformance.for_decoding(target)
    monkeypatch.setattr(conformance, "target", lambda _: laid)
    for how in (*HOWS, *MORE.get(name, ())):
        expected, without = plain(name, how, os.environ[conformance.VARIABLE])
        text, passes = conformance.decoded(DRAFTERS[drafter](head), how)
        assert text == expected, how
        assert how == HOWS[0] or len(set(sum(text, []))) > 5, "a text that says nothing tests nothing"
        assert drafter != "eagle" or passes < 0.9 * without, "the drafter saved no passes: nothing was tested"


@pytest.mark.matrix
@pytest.mark.parametrize("name", CONFIGS)
def test_the_facts_matter(name: str):
    """Negative control: as a plain Llama's layers would compute it, it would be another text."""
    target, _ = pair(name)
    tokens = jnp.arange(20, dtype=jnp.int32)[None]
    logits = jax.jit(lambda lm: lm(tokens)[1])
    changes = {
        "olmo2": {"qk_norm_over": "rotated_head", "qk_norm": False},
        "gpt_oss": {"sinks": False},
        "llama4": {"chunked": False},
        "qwen3_5": {"norm_plus_one": False},
        "deepseek_v3": {"rope": Rope(theta=1e4), "attention_multiplier": 2.0},
        "gemma4": {"v_norm": False},
    }[name]
    other = LM(params=target.params, config=dataclasses.replace(target.config, **changes))
    assert jnp.abs(logits(target) - logits(other)).max() > 0.05


@functools.cache
def loaded(name: str) -> LM:
    """The target as it is read from its family's files."""
    with tempfile.TemporaryDirectory() as folder:
        save_target(pair(name)[0], folder)
        return load_target(folder)


LOADED = ("qwen3_5", "deepseek_v3", "gpt_oss", "gemma4")


@pytest.mark.matrix
@pytest.mark.parametrize("backend", ["xla"], indirect=True)
@pytest.mark.parametrize(
    ("name", "drafter"),
    [("qwen3_5", "suffix decoding"), ("deepseek_v3", "draft model"), ("gpt_oss", "medusa"), ("gemma4", "eagle2")],
)
def test_a_loaded_target(name: str, drafter: str, backend: str, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    same_text_as_loaded(name, drafter, monkeypatch)


@pytest.mark.proof
@pytest.mark.parametrize("backend", ["xla"], indirect=True)
@pytest.mark.parametrize("drafter", conformance.DRAFTERS)
@pytest.mark.parametrize("name", LOADED)
def test_every_drafter_in_every_way(name: str, drafter: str, backend: str, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    same_text_as_loaded(name, drafter, monkeypatch)


def same_text_as_loaded(name: str, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of another target of this size guess badly here, which changes no text."""
    laid = conformance.for_decoding(loaded(name))
    monkeypatch.setattr(conformance, "target", lambda _: laid)
    for how in HOWS:
        expected, _ = plain(name, how, os.environ[conformance.VARIABLE])
        assert conformance.decoded(conformance.DRAFTERS[drafter](), how)[0] == expected, how
