"""Same seed, same text for every family of targets: plain, and drafted by a head that knows nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax.configs.heads import EagleConfig
from eagle_jax.configs.target import Experts, Rope
from eagle_jax.models import layout
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY

SIZES = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
PLAIN = dataclasses.replace(TINY, **SIZES, max_position_embeddings=256)
GEMMA = {"norms": "around", "norm_plus_one": True, "activation": "gelu_tanh"}
GEMMA |= {"embedding_multiplier": 4.0, "attention_multiplier": 6**-0.5}
LOCAL = {"sliding_window": 5, "full_attention_layers": (1,), "tie_word_embeddings": True}
EXPERTS = Experts(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True)
FAMILIES = {
    "mistral": {"sliding_window": 5},
    "qwen2": {"qkv_bias": True, "sliding_window": 5, "full_attention_layers": (0,)},
    "qwen3": {"qk_norm": True, "tie_word_embeddings": True},
    "gemma2": LOCAL | GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0},
    "gemma3": LOCAL | GEMMA | {"local_rope": Rope(theta=100.0), "qk_norm": True},
    "mixtral": {"experts": EXPERTS},
    "qwen3_moe": {"qk_norm": True, "experts": dataclasses.replace(EXPERTS, mlp_only_layers=(0,))},
}
HEAD = Head.init(EagleConfig(layers=dataclasses.replace(PLAIN, num_hidden_layers=1), fc_bias=True), jax.random.key(1))
PROMPTS, NEW = [[3, 1, 4, 1, 5], [9, 2]], 16


@pytest.mark.matrix
@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_same_text(family: str):
    config = dataclasses.replace(PLAIN, **FAMILIES[family])
    params = jax.tree.map(lambda leaf: leaf * 12 if leaf.ndim > 1 else leaf, LM.init(config, jax.random.key(0)).params)
    target = LM(params=layout.for_decoding(params, config.head_dim), config=config)
    model = eagle_jax.Model(target=target, head=HEAD, tokenizer=None, stop_ids=(), context=256)
    asked = {"max_new_tokens": NEW, "temperature": 1.0, "seed": 5, "logprobs": True}
    plain, drafted = (
        eagle_jax.generate(model, PROMPTS, drafter=drafter, tree=[-1, 0, 0, 1, 1], **asked)
        for drafter in ("none", "eagle")
    )
    for one, other in zip(plain, drafted, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
        assert len(set(one.token_ids)) > 3, "a text that says nothing tests nothing"
    assert any(answer.stats.mean_accepted_length > 1 for answer in drafted), "nothing drafted was ever accepted"

    if config.experts is None:
        return
    # Their loop of blocks within the decoding loop computes what it computes alone. Under the options that the decoding
    # loop is compiled with, XLA:CPU has been seen to get loops within loops wrong.
    prompt, answer = PROMPTS[0], plain[0].token_ids
    logits = jax.jit(lambda tokens: target(tokens)[1])(jnp.array([prompt + answer]))[0]
    expected = jax.nn.log_softmax(logits)[np.arange(NEW) + len(prompt) - 1, np.array(answer)]
    np.testing.assert_allclose(plain[0].logprobs, expected, atol=1e-4)
