"""HuggingFace's `config.json` to a `LlamaConfig` and back.

Every key is accounted for: read, checked, or known to do nothing. An unknown one is refused by name and value.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.config import Experts, Gemma, LlamaConfig
from eagle_jax.converters import hf_rope

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`.

    Attributes:
        architecture: the one class with an output matrix.
        keys: what its config says beyond what every family's says; in other families these keys have no effect.
        absent: what transformers 5 takes where its config leaves a key out.
        always: what its code does and no key says, as fields of `LlamaConfig`.
        fixed: values that its keys must have, where they are not those of `FIXED`.
    """

    architecture: str
    keys: frozenset[str]
    absent: Mapping[str, Any]
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)


_QWEN = frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"})
_QWEN_ABSENT: Mapping[str, Any] = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}

_GEMMA = frozenset({"attention_bias", "sliding_window", "layer_types", "query_pre_attn_scalar"}) | {
    "attn_logit_softcapping",
    "final_logit_softcapping",
}
_GEMMA_ABSENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
_GEMMA_FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu_pytorch_tanh",),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        architecture="LlamaForCausalLM",
        keys=frozenset({"attention_bias", "mlp_bias"}),
        absent={"max_position_embeddings": 2048, "num_key_value_heads": None, "rms_norm_eps": 1e-6},
    ),
    "mistral": Family(
        architecture="MistralForCausalLM",
        keys=frozenset({"sliding_window"}),
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
        },
    ),
    "qwen2": Family(architecture="Qwen2ForCausalLM", keys=_QWEN, absent=_QWEN_ABSENT, always={"qkv_bias": True}),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        keys=_QWEN | {"attention_bias"},
        absent={**_QWEN_ABSENT, "head_dim": 128},
        always={"qk_norm": True},
    ),
    "mixtral": Family(
        architecture="MixtralForCausalLM",
        keys=frozenset({"sliding_window", "num_local_experts", "num_experts_per_tok"}),
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        # `max_window_layers` is published with the others and has no effect: a window is every layer's.
        keys=frozenset({"attention_bias", "sliding_window", "use_sliding_window", "max_window_layers"})
        | {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}
        | {"decoder_sparse_step", "mlp_only_layers"},
        absent={
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
            "use_sliding_window": False,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        always={"qk_norm": True},
    ),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        keys=_GEMMA,
        absent={
            **_GEMMA_ABSENT,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window_pattern": 2,
        },
        fixed=_GEMMA_FIXED,
    ),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        keys=_GEMMA | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
        absent={
            **_GEMMA_ABSENT,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
        },
        always={"qk_norm": True},
        fixed=_GEMMA_FIXED,
    ),
}

# Said by some families only.
SPECIFIC = frozenset().union(*(family.keys for family in FAMILIES.values()))

# Values of `layer_types`.
FULL, WINDOWED = "full_attention", "sliding_attention"

# Keys whose null is a statement, whatever the family's default is: all heads, no window, no cap.
NULL_SAYS = frozenset({"num_key_value_heads", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping"})

# Read into the LlamaConfig.
READ = SPECIFIC.union(
    ("model_type", "architectures", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    ("tie_word_embeddings",),
    SIZES,
    hf_rope.KEYS,
)

# Would change the numbers if it were anything else.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "quantization_config": (None,),
    "compression_config": (None,),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "layer_types": (None,),
    "auto_map": (None,),
    "pruned_heads": (None, {}),
    "per_layer_config": (None,),
    "logit_scale": (None, 1.0),
    "qk_norm": (None, False),
    "use_qk_norm": (None, False),
    "use_mrope": (None, False),
}

# Dtype on disk, training, book-keeping, and defaults of `generate`: no effect on the logits.
IGNORED = frozenset(
    """
    attention_dropout cache_implementation output_router_logits router_aux_loss_coef router_jitter_noise
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id cls_token_id
    initializer_range use_cache torch_dtype dtype transformers_version pretraining_tp
    _name_or_path name_or_path _commit_hash _attn_implementation _attn_implementation_autoset attn_implementation
    _flash_attn_2_enabled _experts_implementation _from_model_config _unsloth_version unsloth_version unsloth_fixed
    use_bfloat16 use_flash_attention use_flash_attn max_sequence_length model_max_length tokenizer_class prefix
    return_dict output_hidden_states output_attentions torchscript chunk_size_feed_forward hidden_dropout resid_pdrop
    finetuning_task id2label label2id num_labels problem_type task_specific_params tie_encoder_decoder is_decoder
    cross_attention_hidden_size tf_legacy_loss gradient_checkpointing
    max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size bad_words_ids
    encoder_no_repeat_ngram_size num_return_sequences output_scores return_dict_in_generate forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    """.split()
)

# How many Medusa heads there are, and whose; of a target trained together with them its config says so too.
MEDUSA = frozenset({"medusa_num_heads", "medusa_num_layers", "base_model_name_or_path", "version"})


def config_from_hf(entries: Mapping[str, Any]) -> LlamaConfig:
    """The target model that a `config.json` describes.

    Raises:
        ValueError: another architecture, a key that is not known to be harmless, a missing or ill-typed value.
    """
    name = _family(entries)
    family = FAMILIES[name]
    fixed = {key: values for key, values in FIXED.items() if key not in family.keys}
    account(entries, READ, {**fixed, **family.fixed}, IGNORED | MEDUSA)
    for key in sorted(SPECIFIC - family.keys):
        if entries.get(key):
            raise ValueError(f"{key}={entries[key]!r} in a {name} config, where it has no effect; remove it")
    stated = {key: value for key, value in entries.items() if value is not None or key in NULL_SAYS}
    stated = {**family.absent, **stated}

    sizes: dict[str, Any] = {key: integer(stated, key) for key in SIZES}
    heads = sizes["num_attention_heads"]
    context = integer(stated, "max_position_embeddings")
    return LlamaConfig(
        **sizes,
        **family.always,
        **_windows(stated, family, sizes["num_hidden_layers"]),
        experts=_experts(stated, name, sizes["num_hidden_layers"]),
        num_key_value_heads=integer(stated, "num_key_value_heads", heads),
        head_dim=head_dim(stated, sizes["hidden_size"], heads),
        max_position_embeddings=context,
        rms_norm_eps=number(stated, "rms_norm_eps"),
        rope=hf_rope.rope_from_hf(hf_rope.of_full_layers(stated), context),
        gemma=_gemma(stated, name, context),
        attention_bias=flag(stated, "attention_bias", False),
        mlp_bias=flag(stated, "mlp_bias", False),
        tie_word_embeddings=flag(stated, "tie_word_embeddings", False),
    )


def config_to_hf(config: LlamaConfig) -> dict[str, Any]:
    """The `config.json` of a target; `config_from_hf` reads it back, and so does transformers.

    Raises:
        ValueError: no family's `config.json` can express the combination.
    """
    name = family_of(config)
    family = FAMILIES[name]
    entries: dict[str, Any] = {"architectures": [family.architecture], "model_type": name}
    if config.gemma is None:
        entries["hidden_act"] = "silu"
    else:
        entries["hidden_activation"] = "gelu_pytorch_tanh"
    entries |= {key: getattr(config, key) for key in (*SIZES, "num_key_value_heads", "head_dim")}
    entries |= {key: getattr(config, key) for key in ("max_position_embeddings", "rms_norm_eps")}
    entries |= hf_rope.rope_to_hf(config.rope, config.max_position_embeddings)
    entries["tie_word_embeddings"] = config.tie_word_embeddings
    specific = _specific(config)
    entries |= {key: specific[key] for key in sorted(family.keys) if key in specific}

    read = config_from_hf(entries)
    for field in dataclasses.fields(config):
        if getattr(read, field.name) != getattr(config, field.name):
            raise ValueError(
                f"{field.name}={getattr(config, field.name)!r}: a {name} config.json, the nearest to this model, "
                f"cannot say so"
            )
    return entries


def family_of(config: LlamaConfig) -> str:
    """The family that a model belongs to, if it belongs to one: the first flag that is set tells."""
    experts = config.experts is not None
    gemma = config.gemma is not None
    marks = {
        "gemma3_text": gemma and config.qk_norm,
        "gemma2": gemma,
        "qwen3_moe": experts and config.qk_norm,
        "mixtral": experts,
        "qwen3": config.qk_norm,
        "qwen2": config.qkv_bias,
        "mistral": config.sliding_window is not None,
    }
    return next((name for name, marked in marks.items() if marked), "llama")


def _specific(config: LlamaConfig) -> dict[str, Any]:
    """What the config says in the keys that only some families have."""
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    experts: dict[str, Any] = {}
    if config.experts is not None:
        experts = dataclasses.asdict(config.experts)
        experts |= {"num_local_experts": config.experts.num_experts, "decoder_sparse_step": 1}
        experts["mlp_only_layers"] = list(config.experts.mlp_only_layers)
    gemma: dict[str, Any] = {}
    if config.gemma is not None:
        gemma = dataclasses.asdict(config.gemma)
        local = gemma.pop("local_rope")
        gemma |= {} if local is None else {"rope_local_base_freq": local["theta"]}
    return (experts | gemma) | {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "sliding_window": config.sliding_window,
        "use_sliding_window": config.sliding_window is not None,
        "max_window_layers": len(config.full_attention_layers),
        "layer_types": [FULL if window is None else WINDOWED for window in windows],
    }


def _windows(stated: Mapping[str, Any], family: Family, layers: int) -> dict[str, Any]:
    """The window and the layers without one. Qwen's configs state a window and mostly switch it off."""
    none = {"sliding_window": None, "full_attention_layers": ()}
    if stated.get("sliding_window") is None or not flag(stated, "use_sliding_window", True):
        if WINDOWED in (layer_types(stated) or ()):
            raise ValueError(f"layer_types names {WINDOWED!r}, and no sliding_window is in use; expected one")
        return none
    full = _full_layers(stated, family, layers)
    if len(full) == layers:
        return none
    return {"sliding_window": integer(stated, "sliding_window"), "full_attention_layers": full}


def _full_layers(stated: Mapping[str, Any], family: Family, layers: int) -> tuple[int, ...]:
    """The layers that see everything: named one by one, or else the lowest `max_window_layers`."""
    types = layer_types(stated)
    if types is None and "sliding_window_pattern" in stated:
        step = integer(stated, "sliding_window_pattern")
        return tuple(i for i in range(layers) if (i + 1) % max(step, 1) == 0)
    if types is None:
        lowest = integer(stated, "max_window_layers", 0) if "layer_types" in family.keys else 0
        return tuple(range(min(lowest, layers)))
    if len(types) != layers:
        raise ValueError(f"layer_types={types!r}; expected {FULL!r} or {WINDOWED!r} for each of {layers} layers")
    return tuple(i for i, kind in enumerate(types) if kind == FULL)


def _gemma(stated: Mapping[str, Any], name: str, context: int) -> Gemma | None:
    if name not in ("gemma2", "gemma3_text"):
        return None
    caps = {key: stated.get(key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    return Gemma(
        query_pre_attn_scalar=integer(stated, "query_pre_attn_scalar"),
        **{key: None if cap is None else number(stated, key) for key, cap in caps.items()},
        local_rope=hf_rope.rope_from_hf(hf_rope.of_local_layers(stated), context) if name == "gemma3_text" else None,
    )


def _experts(stated: Mapping[str, Any], name: str, layers: int) -> Experts | None:
    """Mixtral's experts are as wide as its MLP would be and weigh 1 together; Qwen's config says both."""
    if name == "mixtral":
        return Experts(
            num_experts=integer(stated, "num_local_experts"),
            num_experts_per_tok=integer(stated, "num_experts_per_tok"),
            moe_intermediate_size=integer(stated, "intermediate_size"),
            norm_topk_prob=True,
        )
    if name != "qwen3_moe":
        return None
    counts = [integer(stated, key) for key in ("num_experts", "num_local_experts") if key in stated] or [128]
    if len(set(counts)) > 1:
        raise ValueError(f"num_experts={counts[0]} and num_local_experts={counts[1]}; expected the two to agree")
    return Experts(
        num_experts=counts[0],
        num_experts_per_tok=integer(stated, "num_experts_per_tok"),
        moe_intermediate_size=integer(stated, "moe_intermediate_size"),
        norm_topk_prob=flag(stated, "norm_topk_prob", False),
        mlp_only_layers=_dense_layers(stated, layers),
    )


def _dense_layers(stated: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers that are named, and those between every `decoder_sparse_step`-th one."""
    named, step = stated["mlp_only_layers"], integer(stated, "decoder_sparse_step")
    if step < 1 or not isinstance(named, list) or any(i not in range(layers) for i in named):
        raise ValueError(
            f"mlp_only_layers={named!r} and decoder_sparse_step={step}; "
            f"expected a list of layers from 0 to {layers - 1}, and at least 1"
        )
    return tuple(i for i in range(layers) if i in named or (i + 1) % step)


def head_dim(entries: Mapping[str, Any], hidden_size: int, heads: int) -> int:
    """Size of one attention head: as stated, or the hidden size shared out."""
    if entries.get("head_dim") is not None:
        return integer(entries, "head_dim")
    if hidden_size % heads:
        raise ValueError(f"no head_dim, and num_attention_heads={heads} does not divide hidden_size={hidden_size}")
    return hidden_size // heads


def layer_types(entries: Mapping[str, Any]) -> list[str] | None:
    """Which layers have a window, one by one; None where they are not named."""
    types = entries.get("layer_types")
    if types is not None and not (isinstance(types, list) and all(kind in (FULL, WINDOWED) for kind in types)):
        raise ValueError(f"layer_types={types!r}; expected a list of {FULL!r} and {WINDOWED!r}, one for each layer")
    return types


def integer(entries: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"the config has no {name}; expected a whole number")
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
        raise ValueError(f"{name}={value!r}; expected a whole number below 2**31")
    return value


def number(entries: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A number, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if value is None or not hf_rope.is_number(value):
        raise ValueError(f"{name}={value!r}; expected a number")
    return float(value)


def flag(entries: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; expected true or false")
    return value


def _family(entries: Mapping[str, Any]) -> str:
    name = entries.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"model_type {name!r} is not supported; expected one of {', '.join(FAMILIES)}")
    expected = [FAMILIES[name].architecture]
    architectures = entries.get("architectures") or expected
    if architectures != expected:
        raise ValueError(f"architectures {architectures!r} are not supported; expected {expected!r}")
    return name


def account(
    entries: Mapping[str, Any], read: frozenset[str], fixed: Mapping[str, tuple[Any, ...]], ignored: frozenset[str]
) -> None:
    """Refuses what is not understood: a key that nobody reads may well change the numbers."""
    for name, value in entries.items():
        if name in fixed:
            if value not in fixed[name]:
                raise ValueError(f"{name}={value!r} is not supported; expected {fixed[name][0]!r}")
        elif name not in read and name not in ignored:
            raise ValueError(
                f"config key {name}={value!r} is not known and might change the model; remove it if it does not"
            )
