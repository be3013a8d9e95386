"""The keys of a family's `config.json`, and which family a config or a model belongs to."""

import reprlib
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.families.family import FULL, SILU, WINDOWED, Family
from eagle_jax.converters.families.rows import FAMILIES
from eagle_jax.converters.hf import rope
from eagle_jax.converters.hf.keys import Tables, log

__all__ = ["FAMILIES", "FULL", "SILU", "WINDOWED", "Family", "family_in", "tables_of", "text_part"]

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

# Keys whose null is a statement, not the family's default: all heads, no window, no cap, no latent queries, no
# embeddings by layer.
NULL_SAYS = frozenset(
    {"num_key_value_heads", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}
) | {"q_lora_rank", "attention_chunk_size", "hidden_size_per_layer_input"}

# Read into the LlamaConfig, besides a family's own keys.
READ = frozenset().union(
    ("model_type", "architectures", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    ("tie_word_embeddings",),
    SIZES,
    rope.KEYS,
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
    """Returns the tables of known keys of a family's config."""
    family = FAMILIES[name]
    shared = {key: values for key, values in FIXED.items() if key not in family.keys}
    return Tables(
        read=READ | family.keys,
        fixed=shared | dict(family.fixed),
        neutral=IGNORED | MEDUSA | {"auto_map"} | family.neutral,
    )


def family_in(entries: Mapping[str, Any]) -> str:
    """Returns the family that a `config.json` names.

    Raises:
        ValueError: it is none of `FAMILIES`, or the class is not the one with an output matrix.
    """
    name = entries.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        supported = f"{', '.join(list(FAMILIES)[:4])} or another of the {len(FAMILIES)} families in docs/models.md"
        raise ValueError(f"model_type {name!r} is not supported; expected {supported}")
    expected = [FAMILIES[name].architecture]
    architectures = entries.get("architectures") or expected
    named = [str(each).lower() for each in architectures] if isinstance(architectures, list) else None
    if named != [expected[0].lower()]:  # at first it was LLaMAForCausalLM
        raise ValueError(f"architectures {architectures!r} are not supported; expected {expected!r}")
    return name


def text_part(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config under its family's name; for a multimodal model, the text part's config."""
    kind = entries.get("model_type")
    composite = {name: family.composite for name, family in FAMILIES.items() if family.composite is not None}
    families = {name: classes for name, (whole, classes) in composite.items() if whole == kind}
    if not families:
        name = next((name for name, family in FAMILIES.items() if kind in family.aliases), kind)
        return entries if name == kind else {**entries, "model_type": name}
    text = entries.get("text_config")
    inner = text.get("model_type", next(iter(families))) if isinstance(text, Mapping) else None
    name = next((name for name in families if inner in (name, *FAMILIES[name].aliases)), None)
    if name is None or not isinstance(text, Mapping):
        raise ValueError(
            f"text_config={reprlib.repr(text)} in a {kind}; expected the config of a {' or '.join(families)}"
        )
    expected = [families[name]]
    if (classes := entries.get("architectures") or expected) != expected:
        raise ValueError(f"architectures {classes!r} are not supported; expected {expected!r}")
    log.info("the parts of this %s that read no text are left unread", kind)
    tied = {"tie_word_embeddings": entries["tie_word_embeddings"]} if "tie_word_embeddings" in entries else {}
    text_entries = {key: value for key, value in text.items() if key != "architectures"}
    return {**tied, **text_entries, "model_type": name}
