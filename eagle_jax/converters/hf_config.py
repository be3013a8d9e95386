"""HuggingFace's `config.json` to a `LlamaConfig` and back.

Every key is accounted for: read, checked, or known to do nothing. An unknown one is refused by name and value.
"""

from collections.abc import Mapping
from typing import Any

from eagle_jax.config import LlamaConfig
from eagle_jax.converters import hf_rope

# model_type -> the one architecture with an output matrix.
FAMILIES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

# What transformers 5 takes where a family's config leaves a key out.
ABSENT: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "max_position_embeddings": 2048,
        "num_key_value_heads": None,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
    },
    "mistral": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    },
}

# Read into the LlamaConfig.
READ = frozenset(
    """
    model_type architectures num_key_value_heads head_dim max_position_embeddings rms_norm_eps sliding_window
    attention_bias mlp_bias tie_word_embeddings
    """.split()
).union(SIZES, hf_rope.KEYS)

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
}

# Dtype on disk, training, book-keeping, and defaults of `generate`: no effect on the logits.
IGNORED = frozenset(
    """
    attention_dropout bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id cls_token_id
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


def config_from_hf(entries: Mapping[str, Any]) -> LlamaConfig:
    """The target model that a `config.json` describes.

    Raises:
        ValueError: another architecture, a key that is not known to be harmless, a missing or ill-typed value.
    """
    family = _family(entries)
    account(entries, READ, FIXED, IGNORED)
    _check_family(family, entries)
    default = ABSENT[family]
    sizes: dict[str, Any] = {name: integer(entries, name) for name in SIZES}
    heads = sizes["num_attention_heads"]
    context = integer(entries, "max_position_embeddings", default["max_position_embeddings"])
    # An explicit null means all heads, or no window, whatever the family's default is.
    for name, null in (("num_key_value_heads", heads), ("sliding_window", None)):
        value = entries.get(name, default[name])
        sizes[name] = null if value is None else integer({name: value}, name)
    return LlamaConfig(
        **sizes,
        head_dim=head_dim(entries, sizes["hidden_size"], heads),
        max_position_embeddings=context,
        rms_norm_eps=number(entries, "rms_norm_eps", default["rms_norm_eps"]),
        rope=hf_rope.rope_from_hf(entries, context),
        attention_bias=flag(entries, "attention_bias", False),
        mlp_bias=flag(entries, "mlp_bias", False),
        tie_word_embeddings=flag(entries, "tie_word_embeddings", False),
    )


def config_to_hf(config: LlamaConfig) -> dict[str, Any]:
    """The `config.json` of a target; `config_from_hf` reads it back, and so does transformers.

    Raises:
        ValueError: transformers' Llama and Mistral cannot express the combination.
    """
    family = "llama" if config.sliding_window is None else "mistral"
    if config.qkv_bias and not config.attention_bias:
        raise ValueError("qkv_bias without a bias on o_proj: neither a llama nor a mistral config.json can say so")
    if family == "mistral" and (config.attention_bias or config.mlp_bias):
        raise ValueError("sliding_window together with biases: neither a llama nor a mistral config.json can say so")
    entries: dict[str, Any] = {"architectures": [FAMILIES[family]], "model_type": family, "hidden_act": "silu"}
    entries |= {name: getattr(config, name) for name in (*SIZES, "num_key_value_heads", "head_dim")}
    entries |= {name: getattr(config, name) for name in ("max_position_embeddings", "rms_norm_eps")}
    entries |= hf_rope.rope_to_hf(config.rope, config.max_position_embeddings)
    entries["tie_word_embeddings"] = config.tie_word_embeddings
    if family == "llama":
        entries |= {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}
    else:
        entries["sliding_window"] = config.sliding_window
    return entries


def head_dim(entries: Mapping[str, Any], hidden_size: int, heads: int) -> int:
    """Size of one attention head: as stated, or the hidden size shared out."""
    if entries.get("head_dim") is not None:
        return integer(entries, "head_dim")
    if hidden_size % heads:
        raise ValueError(f"no head_dim, and num_attention_heads={heads} does not divide hidden_size={hidden_size}")
    return hidden_size // heads


def integer(entries: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"the config has no {name}; expected a whole number")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={value!r}; expected a whole number")
    return value


def number(entries: Mapping[str, Any], name: str, default: float) -> float:
    """A number, `default` where absent or null."""
    value = entries.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float):
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
    family = entries.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is not supported; expected {' or '.join(FAMILIES)}")
    architectures = entries.get("architectures") or [FAMILIES[family]]
    if architectures != [FAMILIES[family]]:
        raise ValueError(f"architectures {architectures!r} are not supported; expected [{FAMILIES[family]!r}]")
    return family


def _check_family(family: str, entries: Mapping[str, Any]) -> None:
    """Settings that transformers would silently pass over in this family."""
    foreign = {"llama": ("sliding_window",), "mistral": ("attention_bias", "mlp_bias")}[family]
    for name in foreign:
        if entries.get(name):
            raise ValueError(f"{name}={entries[name]!r} in a {family} config, where it has no effect; remove it")


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
