"""The families of Gemmas: a row each."""

from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.families import facts, gemma4
from eagle_jax.converters.families.family import Family

_GEMMA = frozenset({"attention_bias", "sliding_window", "layer_types", "query_pre_attn_scalar"}) | {
    "attn_logit_softcapping",
    "final_logit_softcapping",
}
_GEMMA_IMPLIED: Mapping[str, Any] = {"norms": "around", "norm_plus_one": True, "activation": "gelu_tanh"}
_GEMMA_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
_GEMMA_FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
}

GEMMA: Mapping[str, Family] = {
    "gemma2": Family(
        title="Gemma 2",
        differs="norms that multiply by 1 + scale, and after attention and MLP too; tanh-GELU; scaled "
        "embeddings; soft caps on scores and logits; every second layer with a window",
        architecture="Gemma2ForCausalLM",
        keys=_GEMMA,
        defaults={
            **_GEMMA_DEFAULTS,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window_pattern": 2,
        },
        implied_fields=_GEMMA_IMPLIED,
        fixed=_GEMMA_FIXED,
        read=facts.gemma,
    ),
    "gemma3_text": Family(
        title="Gemma 3 (text)",
        differs="as Gemma 2 without caps; normed heads; layers with a window have a rotary embedding of their own",
        architecture="Gemma3ForCausalLM",
        composite=("gemma3", "Gemma3ForConditionalGeneration"),
        keys=_GEMMA | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
        defaults={
            **_GEMMA_DEFAULTS,
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
        },
        implied_fields={**_GEMMA_IMPLIED, "qk_norm": True},
        fixed=_GEMMA_FIXED,
        read=facts.gemma,
    ),
    "gemma4_text": Family(
        title="Gemma 4 (text)",
        differs="norms around attention and MLP, and of values; scores without a scale; layers without a window have "
        "heads of another size, of which a part is rotated, and may make values of keys; the last layers attend to "
        "keys and values of earlier ones; embeddings by layer (E2B, E4B); sparse experts in addition to the MLP (26B)",
        architecture="Gemma4ForCausalLM",
        composite=("gemma4", "Gemma4ForConditionalGeneration"),
        keys=gemma4.KEYS | gemma4.OF_LAYERS | gemma4.MOE,
        defaults={**gemma4.ABSENT, **gemma4.ABSENT_OF_LAYERS},
        implied_fields={**gemma4.ALWAYS, "layout": "gemma4"},
        fixed=gemma4.FIXED,
        rope=frozenset({"proportional"}),
        experts=gemma4.experts,
        read=gemma4.read,
        write=gemma4.write,
    ),
    "gemma4_unified_text": Family(
        title="Gemma 4 12B (text)",
        differs="as Gemma 4, without embeddings by layer and experts",
        architecture="Gemma4UnifiedForCausalLM",
        composite=("gemma4_unified", "Gemma4UnifiedForConditionalGeneration"),
        keys=gemma4.KEYS,
        defaults={**gemma4.ABSENT, "max_position_embeddings": 262144, "sliding_window": 1024},
        implied_fields={**gemma4.ALWAYS, "layout": "gemma4_unified"},
        fixed=gemma4.FIXED,
        rope=frozenset({"proportional"}),
        read=gemma4.read,
        write=gemma4.write_heads,
    ),
}
