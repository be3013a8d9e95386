"""The `config.json` that a GGUF file's metadata amounts to; `config_from_hf` reads it as any other.

Every entry about the model is accounted for: read, checked, or known to do nothing. An unknown one is refused by name.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from eagle_jax.config import Rope
from eagle_jax.converters.gguf_file import GgufFile, read_gguf
from eagle_jax.converters.gguf_tensors import ROPE_FACTORS, head_counts, hf_names
from eagle_jax.converters.hf_families import FAMILIES
from eagle_jax.models.rope import frequencies

# Architecture -> `model_type`.
MODEL_TYPES = {
    **{
        name: name
        for name in ("llama", "qwen2", "qwen3", "gemma2", "olmo2", "exaone4", "granite", "smollm3", "ernie4_5")
    },
    **{name: name for name in ("seed_oss", "phi3", "granitemoe", "olmoe")},
    **{"gemma3": "gemma3_text", "hunyuan-dense": "hunyuan_v1_dense", "minimax-m2": "minimax_m2", "gpt-oss": "gpt_oss"},
}

# Entry behind the architecture's name -> key in config.json.
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
    "granite": _GRANITE,
    "granitemoe": _GRANITE | _EXPERTS,
    "olmoe": _EXPERTS | {"expert_count": "num_experts"},
    "minimax-m2": _EXPERTS | _WIDE,
    "gpt-oss": _EXPERTS | _WIDE,
}
# Entries that say what the architecture does anyway: experts by sigmoids.
_USUAL: Mapping[str, Mapping[str, Any]] = {"minimax-m2": {"expert_gating_func": 2}}
# What is meant where no entry says otherwise, as keys of config.json.
_UNSAID: Mapping[str, Mapping[str, Any]] = {
    "gpt-oss": {"swiglu_limit": 7.0},
    "olmoe": {"norm_topk_prob": False},
    "exaone4": {"sliding_window": None},
    "phi3": {"sliding_window": None},
}
_CHECKED = {"attention.head_count", "attention.head_count_kv", "attention.value_length", "rope.dimension_count"}
_SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_YARN: Mapping[str, Mapping[str, Any]] = {"gpt-oss": {"truncate": False}}  # in no entry
# vocab_size is the number of rows of the embedding; the others tell how the file came about.
_IGNORED = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout"}
_NO_NUMBERS = {"rope.scaling.type", "rope.scaling.finetuned", "tensor_data_layout"}
# Entries of other models, in files of these only where they change nothing.
_ABSENT = {"expert_count": 0, "expert_used_count": 0}

# Llama 3.1 and later state their scaling as factors of the frequencies; the factor itself is the largest of them.
_LLAMA3: Mapping[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

# Numbers of layers of the Gemmas that scale queries by hidden size / heads, as llama.cpp tells them apart.
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}

_END_TOKENS = ("eos", "eot", "eom")


def config_entries(path: pathlib.Path) -> dict[str, Any]:
    """The `config.json` of the model in a GGUF file.

    Raises:
        ValueError: another architecture, or an entry that is not known, or that contradicts another.
    """
    file = read_gguf(path)
    own_names = hf_names(file)
    try:
        entries = _entries(file)
    except KeyError as error:
        raise ValueError(f"{path} has no {error.args[0]}; expected all sizes of the model in its metadata") from error
    entries["tie_word_embeddings"] = "lm_head.weight" not in own_names
    if "attention_bias" in FAMILIES[entries["model_type"]].keys:
        entries["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in own_names
    if "mlp_bias" in FAMILIES[entries["model_type"]].keys:
        entries["mlp_bias"] = "model.layers.0.mlp.up_proj.bias" in own_names
    if "use_bias" in FAMILIES[entries["model_type"]].keys:
        entries["use_bias"] = "model.layers.0.self_attn.q_proj.bias" in own_names
    if "attention_out_bias" in FAMILIES[entries["model_type"]].keys:
        entries["attention_out_bias"] = "model.layers.0.self_attn.o_proj.bias" in own_names
    return entries


def end_ids(path: pathlib.Path) -> list[int]:
    """The tokens that end an answer: of text, of a turn, of a message."""
    metadata = read_gguf(path).metadata
    ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _END_TOKENS)
    return sorted({id for id in ids if id is not None})


def _entries(file: GgufFile) -> dict[str, Any]:
    architecture = file.metadata["general.architecture"]
    stated = _stated(file, architecture)
    known = _KEYS | dict(_OWN.get(architecture, {}))
    entries: dict[str, Any] = {}
    for name, key in known.items():
        if name in stated and entries.setdefault(key, _plain(stated[name])) != _plain(stated[name]):
            raise ValueError(
                f"{file.path} has {architecture}.{name} {stated[name]} beside {entries[key]} under another name; "
                "expected the two to agree"
            )
    heads, kv_heads = head_counts(file)
    entries.setdefault("head_dim", stated["embedding_length"] // heads)
    entries |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    entries["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    rotated = stated.get("rope.dimension_count", entries["head_dim"])
    if "partial" in FAMILIES[MODEL_TYPES[architecture]].rope:
        is_count = "rotary_dim" in FAMILIES[MODEL_TYPES[architecture]].keys
        share = {"rotary_dim": rotated} if is_count else {"partial_rotary_factor": rotated / entries["head_dim"]}
        entries, stated = entries | share, stated | {"rope.dimension_count": entries["head_dim"]}
    for name in ("attention.value_length", "rope.dimension_count"):
        if stated.get(name, entries["head_dim"]) != entries["head_dim"]:
            raise ValueError(f"{file.path} has {architecture}.{name} {stated[name]}; expected {entries['head_dim']}")
    entries["rope_scaling"] = _scaling(file, stated, entries)
    entries = dict(_UNSAID.get(architecture, {})) | entries
    entries |= _family(architecture, entries)
    return entries | _tokens(file)


def _stated(file: GgufFile, architecture: str) -> dict[str, Any]:
    """The entries about the model, each of them known."""
    prefix = f"{architecture}."
    stated = {name.removeprefix(prefix): value for name, value in file.metadata.items() if name.startswith(prefix)}
    own = _OWN.get(architecture, {}).keys()
    for name, value in stated.items():
        usual = _ABSENT | dict(_USUAL.get(architecture, {}))
        if name not in own and name in usual and value == usual[name]:
            continue
        if name not in _KEYS.keys() | own | _CHECKED | _SCALING.keys() | _IGNORED:
            raise ValueError(f"{file.path} has {prefix}{name} {value!r}, which is not known and might change the model")
        if name not in _NO_NUMBERS | _CHECKED and type(value) not in (int, float):
            raise ValueError(f"{file.path} has {prefix}{name} {value!r}; expected a number")
    return stated


def _family(architecture: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """What the architecture says besides."""
    name = MODEL_TYPES[architecture]
    if name == "llama" and entries.get("sliding_window"):
        name = "mistral"
    specific: dict[str, Any] = {"model_type": name, "architectures": [FAMILIES[name].architecture]}
    if architecture not in _LARGEST_GEMMA:
        return specific | {"hidden_act": "silu"}
    largest = entries["num_hidden_layers"] == _LARGEST_GEMMA[architecture]
    scalar = entries["hidden_size"] // entries["num_attention_heads"] if largest else entries["head_dim"]
    return specific | {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}


def _scaling(file: GgufFile, stated: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling`, from the metadata or from the factors of Llama 3.1."""
    scaling = {key: _plain(stated[name]) for name, key in _SCALING.items() if name in stated}
    kind = scaling.get("rope_type", "none")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise ValueError(f"{file.path} has {ROPE_FACTORS} and rope scaling of kind {kind!r}; expected one of them")
        return _llama3(file, entries)
    if kind == "none":
        return None
    if kind == "yarn":
        return scaling | dict(_YARN.get(file.metadata["general.architecture"], {}))
    return {key: scaling[key] for key in ("rope_type", "factor") if key in scaling}


def _llama3(file: GgufFile, entries: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the factors follow from, if they do.

    Raises:
        ValueError: the factors are others.
    """
    factors = file.tensors[ROPE_FACTORS].data.view(np.float32)
    plain = Rope(theta=entries["rope_theta"])
    scaled = Rope(theta=plain.theta, kind="llama3", factor=float(factors.max()), **_LLAMA3)
    expected = frequencies(plain, entries["head_dim"]) / frequencies(scaled, entries["head_dim"])
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ValueError(f"{file.path} has rotary factors in {ROPE_FACTORS} unlike those of Llama 3.1; expected these")
    return {"rope_type": "llama3", "factor": scaled.factor, **_LLAMA3}


def _tokens(file: GgufFile) -> dict[str, Any]:
    """The tokens that begin and end a text, which every `config.json` names."""
    ids = {f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    return {key: id for key, id in ids.items() if id is not None}


def _plain(value: Any) -> Any:
    """A number as it was before it was stored in 32 bits: 1e-6, not 9.999999974752427e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
