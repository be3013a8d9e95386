"""The families of `model_type` that are read: what each one's `config.json` says, leaves out, and must not say."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.config import LlamaConfig
from eagle_jax.converters import hf_rope
from eagle_jax.converters.hf_keys import Tables

SILU: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish")}
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`.

    Attributes:
        architecture: the one class with an output matrix.
        keys: what its config says beyond what every family's says.
        absent: what transformers 5 takes where its config leaves a key out.
        always: what its code does and no key says, as fields of `LlamaConfig`.
        fixed: values that keys of its own must have.
    """

    architecture: str
    keys: frozenset[str]
    absent: Mapping[str, Any]
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=lambda: SILU)


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
        keys=frozenset({"sliding_window", "num_experts", "num_local_experts", "num_experts_per_tok"}),
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "rope_theta": 1e6,
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

# Values of `layer_types`.
FULL, WINDOWED = "full_attention", "sliding_attention"

# Keys whose null is a statement, whatever the family's default is: all heads, no window, no cap.
NULL_SAYS = frozenset({"num_key_value_heads", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping"})

# Read into the LlamaConfig, besides a family's own keys.
READ = frozenset().union(
    ("model_type", "architectures", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    ("tie_word_embeddings",),
    SIZES,
    hf_rope.KEYS,
)

# What the code that all models of transformers 5.0 to 5.24 share reads of any config, declared by its class or not:
# masks, caches, the choice among several parts, and how weights are found. Families that have the key read it.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "compression_config": (None,),
    "is_encoder_decoder": (False, None),
    "is_causal": (True,),
    "sliding_window": (None,),
    "attention_chunk_size": (None,),
    "layer_types": (None,),
    "per_layer_config": (None,),
    "kv_sharing_modes": (None,),
    "num_kv_shared_layers": (None, 0),
    "text_config": (None,),
    "text_encoder": (None,),
    "decoder": (None,),
    "generator": (None,),
    "transformers_weights": (None,),
    "fusion_config": (None,),
    "distributed_config": (None,),
}

# Dtype on disk, training, book-keeping, and defaults of `generate`: no effect on the logits.
IGNORED = frozenset(
    """
    attention_dropout cache_implementation output_router_logits router_aux_loss_coef router_jitter_noise
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id cls_token_id unk_token_id
    initializer_range use_cache torch_dtype dtype transformers_version pretraining_tp
    _name_or_path __name_or_path name_or_path _commit_hash
    _attn_implementation _attn_implementation_autoset attn_implementation
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


def tables_of(name: str) -> Tables:
    """What is known about the keys of a family's config."""
    family = FAMILIES[name]
    shared = {key: values for key, values in FIXED.items() if key not in family.keys}
    return Tables(read=READ | family.keys, fixed=shared | dict(family.fixed), neutral=IGNORED | MEDUSA | {"auto_map"})


def family_in(entries: Mapping[str, Any]) -> str:
    """The family that a `config.json` names.

    Raises:
        ValueError: it is none of `FAMILIES`, or the class is not the one with an output matrix.
    """
    name = entries.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"model_type {name!r} is not supported; expected one of {', '.join(FAMILIES)}")
    expected = [FAMILIES[name].architecture]
    architectures = entries.get("architectures") or expected
    if [str(each).lower() for each in architectures] != [expected[0].lower()]:  # at first it was LLaMAForCausalLM
        raise ValueError(f"architectures {architectures!r} are not supported; expected {expected!r}")
    return name


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
