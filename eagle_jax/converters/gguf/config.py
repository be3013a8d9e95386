"""Converts a GGUF file's metadata to the entries of a `config.json`, for `config_from_hf`.

Every entry about the model is read, checked, or known to have no effect. An unknown entry is refused by name.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.families.lookup import FAMILIES
from eagle_jax.converters.gguf import gemma4, rope
from eagle_jax.converters.gguf.file import GgufFile, plain, read_gguf
from eagle_jax.converters.gguf.tensors import head_counts, hf_names
from eagle_jax.converters.hf.rope import in_one_spelling

# Architecture -> `model_type`.
MODEL_TYPES = {
    **{
        name: name
        for name in ("llama", "qwen2", "qwen3", "gemma2", "olmo2", "exaone4", "granite", "smollm3", "ernie4_5")
    },
    **{name: name for name in ("seed_oss", "phi3", "granitemoe", "olmoe")},
    **{"mistral3": "ministral3", "gemma4": "gemma4_text", "glm4moe": "glm4_moe"},
    **{"gemma3": "gemma3_text", "hunyuan-dense": "hunyuan_v1_dense", "minimax-m2": "minimax_m2", "gpt-oss": "gpt_oss"},
}

# Entry after the architecture's name -> key in config.json.
_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
# How many experts there are, and how wide; `feed_forward_length` may be stated besides, and must agree.
_EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
_WIDE = {"expert_feed_forward_length": "intermediate_size"}
# The same for entries that only some architectures have.
_OWN: Mapping[str, Mapping[str, str]] = {
    "glm4moe": {
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
        "leading_dense_block_count": "first_k_dense_replace",
        "nextn_predict_layers": "num_nextn_predict_layers",
    },
    "granite": _GRANITE,
    "granitemoe": _GRANITE | _EXPERTS,
    "olmoe": _EXPERTS | {"expert_count": "num_experts"},
    "minimax-m2": _EXPERTS | _WIDE,
    "gpt-oss": _EXPERTS | _WIDE,
}
# Entries that say what the architecture does anyway: experts by sigmoids.
_USUAL: Mapping[str, Mapping[str, Any]] = dict.fromkeys(("minimax-m2", "glm4moe"), {"expert_gating_func": 2})
# What is meant where no entry says otherwise, as keys of config.json.
_IMPLIED: Mapping[str, Mapping[str, Any]] = {
    "gpt-oss": {"swiglu_limit": 7.0},
    "olmoe": {"norm_topk_prob": False},
    "exaone4": {"sliding_window": None},
    "phi3": {"sliding_window": None},
    "mistral3": {"sliding_window": None},
    "glm4moe": {"first_k_dense_replace": 0, "norm_topk_prob": False},
}
_CHECKED = {"attention.head_count", "attention.head_count_kv", "attention.value_length", "rope.dimension_count"}
# vocab_size is the number of rows of the embedding; the others describe how the file was made.
_IGNORED = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout"}
_NO_NUMBERS = {"rope.scaling.type", "rope.scaling.finetuned", "tensor_data_layout", "expert_weights_norm"}
# Entries of other models, in files of these only where they change nothing.
_DEFAULTS = {"expert_count": 0, "expert_used_count": 0}

# Numbers of layers of the Gemmas that scale queries by hidden size / heads, as llama.cpp distinguishes them.
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}

# Keys that follow from the tensors of a layer.
_TENSOR_OF_KEY = {
    "attention_bias": "self_attn.q_proj.bias",
    "mlp_bias": "mlp.up_proj.bias",
    "use_bias": "self_attn.q_proj.bias",
    "attention_out_bias": "self_attn.o_proj.bias",
    "use_qk_norm": "self_attn.q_norm.weight",
}

_END_TOKENS = ("eos", "eot", "eom")


def config_entries(path: pathlib.Path) -> dict[str, Any]:
    """Returns the `config.json` of the model in a GGUF file.

    Raises:
        ValueError: another architecture, or an entry that is not known, or that contradicts another.
    """
    file = read_gguf(path)
    tensor_names = hf_names(file)
    try:
        entries = _entries(file)
    except KeyError as error:
        raise ValueError(f"{path} has no {error.args[0]}; expected all sizes of the model in its metadata") from error
    entries["tie_word_embeddings"] = "lm_head.weight" not in tensor_names
    keys = FAMILIES[entries["model_type"]].keys
    return entries | {
        key: f"model.layers.0.{name}" in tensor_names for key, name in _TENSOR_OF_KEY.items() if key in keys
    }


def end_ids(path: pathlib.Path) -> list[int]:
    """Returns the ids of the tokens that end a text, a turn or a message."""
    metadata = read_gguf(path).metadata
    ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _END_TOKENS)
    return sorted({id for id in ids if id is not None})


def _entries(file: GgufFile) -> dict[str, Any]:
    architecture, metadata, family_entries = file.architecture, file.architecture_metadata(), dict[str, Any]()
    if architecture == gemma4.ARCHITECTURE:
        metadata, family_entries = gemma4.split(file, metadata, hf_names(file))
    _refuse_unknown(file, metadata)
    key_of = _KEYS | dict(_OWN.get(architecture, {}))
    entries: dict[str, Any] = {}
    for name, key in key_of.items():
        if name in metadata and entries.setdefault(key, plain(metadata[name])) != plain(metadata[name]):
            raise ValueError(
                f"{file.path} has {architecture}.{name} {metadata[name]} and {entries[key]} under another name; "
                "expected the two to agree"
            )
    heads, kv_heads = head_counts(file, metadata)
    entries.setdefault("head_dim", metadata["embedding_length"] // heads)
    entries |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    entries["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    entries["num_hidden_layers"] -= entries.get("num_nextn_predict_layers", 0)  # which come after the model's own
    if not entries.get("sliding_window", 1):
        entries["sliding_window"] = None  # Phi-4
    rotated = metadata.get("rope.dimension_count", entries["head_dim"])
    if "partial" in FAMILIES[MODEL_TYPES[architecture]].rope:
        is_count = "rotary_dim" in FAMILIES[MODEL_TYPES[architecture]].keys
        share = {"rotary_dim": rotated} if is_count else {"partial_rotary_factor": rotated / entries["head_dim"]}
        entries, metadata = entries | share, metadata | {"rope.dimension_count": entries["head_dim"]}
    for name in ("attention.value_length", "rope.dimension_count"):
        if metadata.get(name, entries["head_dim"]) != entries["head_dim"]:
            raise ValueError(f"{file.path} has {architecture}.{name} {metadata[name]}; expected {entries['head_dim']}")
    entries |= family_entries or rope.rope_entries(file, metadata, entries)
    entries = dict(_IMPLIED.get(architecture, {})) | entries
    entries |= _family(architecture, entries, metadata) | _tokens(file)
    return in_one_spelling(entries, FAMILIES[entries["model_type"]].defaults)


def _refuse_unknown(file: GgufFile, metadata: Mapping[str, Any]) -> None:
    """Refuses entries about the model that are not known."""
    architecture = file.architecture
    family_keys = _OWN.get(architecture, {}).keys() | rope.OWN.get(architecture, {}).keys()
    for name, value in metadata.items():
        usual = _DEFAULTS | dict(_USUAL.get(architecture, {}))
        if name not in family_keys and name in usual and value == usual[name]:
            continue
        if name not in _KEYS.keys() | family_keys | _CHECKED | rope.SETTINGS.keys() | _IGNORED:
            raise ValueError(
                f"{file.path} has {architecture}.{name} {value!r}, which is not known and might change the model"
            )
        if name not in _NO_NUMBERS | _CHECKED and type(value) not in (int, float):
            raise ValueError(f"{file.path} has {architecture}.{name} {value!r}; expected a number")


def _family(architecture: str, entries: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries that follow from the architecture alone."""
    name = MODEL_TYPES[architecture]
    grows = "attention.temperature_scale" in metadata
    if (name == "llama" and entries.get("sliding_window")) or (name == "ministral3" and not grows):
        name = "mistral"
    specific: dict[str, Any] = {"model_type": name, "architectures": [FAMILIES[name].architecture]}
    if architecture == gemma4.ARCHITECTURE:
        return specific | {"hidden_activation": "gelu_pytorch_tanh"}
    if architecture not in _LARGEST_GEMMA:
        return specific | {"hidden_act": "silu"}
    largest = entries["num_hidden_layers"] == _LARGEST_GEMMA[architecture]
    scalar = entries["hidden_size"] // entries["num_attention_heads"] if largest else entries["head_dim"]
    return specific | {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}


def _tokens(file: GgufFile) -> dict[str, Any]:
    """Returns the tokens that begin and end a text, which every `config.json` names."""
    ids = {f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    return {key: id for key, id in ids.items() if id is not None}
