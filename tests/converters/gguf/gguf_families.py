"""Tiny models of the families that GGUF files have, and files of them with names by the gguf library's own table."""

import math
import pathlib
import re
import types
from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import llama, names
from eagle_jax.models.lm import LM
from tests.converters import folders
from tests.converters.gguf.gguf_files import add_byte_level, permuted
from tests.converters.gguf.gguf_sizes import add_sizes

SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 300, "hidden_act": "silu"}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SCALES = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}
COUNTS = {"expert_count": 4, "expert_used_count": 2}
OWN_SCALES = {"attention.scale": 0.25, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}
OWN_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
FULL, WINDOWED = "full_attention", "sliding_attention"
GEMMA4 = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 8,
    "layer_types": [WINDOWED, FULL, WINDOWED, FULL],
    "tie_word_embeddings": False,
}
OWN_GEMMA4 = {
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": [True, False, True, False],
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.05, 1.5, 2.0, 2.5], "long_factor": [1.25, 3.0, 8.0, 9.5]}
# architecture and case -> class, entries of config.json, entries of the metadata
FAMILIES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "olmo2": ("Olmo2ForCausalLM", {"model_type": "olmo2"}, {}),
    "exaone4": ("Exaone4ForCausalLM", {"model_type": "exaone4", "sliding_window": None}, {}),
    "granite": ("GraniteForCausalLM", {"model_type": "granite"} | SCALES, OWN_SCALES),
    "smollm3": ("SmolLM3ForCausalLM", {"model_type": "smollm3", "num_hidden_layers": 4}, {}),
    "ernie4_5": ("Ernie4_5ForCausalLM", {"model_type": "ernie4_5", "head_dim": 16}, {}),
    "seed_oss": ("SeedOssForCausalLM", {"model_type": "seed_oss", "attention_bias": True, "head_dim": 16}, {}),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", {"model_type": "hunyuan_v1_dense", "head_dim": 16}, {}),
    "phi3": (
        "Phi3ForCausalLM",
        {"model_type": "phi3", "partial_rotary_factor": 0.75, "sliding_window": None},
        {"rope.dimension_count": 12},
    ),
    "phi3 with LongRoPE": (
        "Phi3ForCausalLM",
        {"model_type": "phi3", "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16}
        | {"rope_scaling": LONGROPE},
        {
            "rope.dimension_count": 8,
            "attention.sliding_window": 0,  # as llama.cpp's converter writes it where there is none
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": (1 + math.log(32 / 16) / math.log(16)) ** 0.5,
        },
    ),
    "mistral3": (
        "Ministral3ForCausalLM",
        {"model_type": "ministral3", "head_dim": 16}
        | {
            "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1, "truncate": True}
        },
        {"rope.scaling.yarn_log_multiplier": 0.5, "attention.temperature_scale": 0.1} | OWN_YARN,
    ),
    "mistral3 without growing queries": (
        "MistralForCausalLM",
        {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        {"rope.dimension_count": 16},
    ),
    "gemma4": (  # E2B
        "Gemma4ForCausalLM",
        GEMMA4
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "num_kv_shared_layers": 2}
        | {"use_double_wide_mlp": True, "final_logit_softcapping": 30.0},
        OWN_GEMMA4
        | {"embedding_length_per_layer_input": 8, "attention.shared_kv_layers": 2, "final_logit_softcapping": 30.0}
        | {"feed_forward_length": [96, 96, 192, 192], "expert_count": 0},
    ),
    "gemma4 with experts": (  # 26B
        "Gemma4ForCausalLM",
        GEMMA4
        | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
        | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48},
        OWN_GEMMA4 | COUNTS | {"expert_feed_forward_length": 48, "attention.head_count_kv": [2, 1, 2, 1]},
    ),
    "glm4moe": (
        "Glm4MoeForCausalLM",
        {"model_type": "glm4_moe", "head_dim": 16, "num_hidden_layers": 3, "first_k_dense_replace": 1}
        | {"attention_bias": True, "use_qk_norm": True, "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 48, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "n_group": 2}
        | {"topk_group": 1},
        {"rope.dimension_count": 8, "expert_feed_forward_length": 48, "expert_gating_func": 2}
        | {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5}
        | {"expert_weights_norm": True, "expert_group_count": 2, "expert_group_used_count": 1}
        | COUNTS,
    ),
    "granitemoe": ("GraniteMoeForCausalLM", {"model_type": "granitemoe"} | SCALES | EXPERTS, OWN_SCALES | COUNTS),
    "olmoe": ("OlmoeForCausalLM", {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2}, COUNTS),
    "minimax-m2": (
        "MiniMaxM2ForCausalLM",
        {"model_type": "minimax_m2", "head_dim": 16, "rotary_dim": 8} | EXPERTS,
        {"rope.dimension_count": 8, "expert_feed_forward_length": 96, "expert_gating_func": 2} | COUNTS,
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        {"model_type": "gpt_oss", "head_dim": 16, "sliding_window": 8, "rope_scaling": YARN} | EXPERTS,
        {"attention.sliding_window": 8, "expert_feed_forward_length": 96} | OWN_YARN | COUNTS,
    ),
}
PERMUTED = ("mistral3", "granite", "granitemoe", "smollm3")


def parameters(model: LM) -> dict[str, np.ndarray]:
    """A model's tensors, each of one matrix or of the matrices of all experts, as llama.cpp's converter has them."""
    single: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, value in names.tensors(llama.rules(model.config), model.params):
        expert = re.fullmatch(r"(.*experts)\.(\d+)\.(.*)", name)
        if expert is None:
            single[name] = np.asarray(value)
        else:
            stacks.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = np.asarray(value)
    return single | {name: np.stack([one[i] for i in sorted(one)]) for name, one in stacks.items()}


# Names that the library's table has under another one, as the converter hands them over.
RENAMED = {
    "block_sparse_moe.gate": "ffn_gate_exps",
    "block_sparse_moe.up": "ffn_up_exps",
    "e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    "self_attn.sinks": "attn_sinks.weight",
    "shared_head.norm.weight": "nextn.shared_head_norm.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}


def own_name(name: str, table: Any, is_stack: bool) -> str:
    """A parameter's name in a GGUF file."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    for end, own in RENAMED.items():
        if layer and name.endswith(end) and (is_stack or "gate" not in end):
            return f"blk.{layer[1]}.{own}" if "." in own else f"blk.{layer[1]}.{own}.weight"
    found = table.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found if found.endswith((".weight", ".bias")) else f"{found}.weight"


def write(
    path: pathlib.Path,
    model: LM,
    case: str,
    metadata: Mapping[str, Any],
    extra: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> pathlib.Path:
    """A GGUF file of this model and of `extra` tensors, by their names in a HuggingFace checkpoint."""
    c, architecture = model.config, case.split(" ")[0]
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(kind, metadata.get("block_count", c.num_hidden_layers))
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, c, frozenset(metadata))
    for key, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add |= {bool: writer.add_bool, list: writer.add_array}
        add[value.__class__](f"{architecture}.{key}", value)
    add_byte_level(writer, c.vocab_size, "smollm")
    for name, value in (joined(parameters(model), architecture) | dict(extra)).items():
        for projection, heads in (("q_proj.", c.num_attention_heads), ("k_proj.", c.num_key_value_heads)):
            value = permuted(value, heads) if architecture in PERMUTED and projection in name else value
        writer.add_tensor(own_name(name, table, value.ndim == 3), np.ascontiguousarray(value))
    for name, factors in rope_tensors(c).items():
        writer.add_tensor(name, np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rope_tensors(config: LlamaConfig) -> dict[str, Any]:
    """Factors of frequencies, by the names of their tensors."""
    rope = config.rope
    if rope.kind == "longrope":
        return {"rope_factors_long.weight": rope.long_factor, "rope_factors_short.weight": rope.short_factor}
    if rope.kind != "proportional":
        return {}
    pairs = config.by_layer.head_dim // 2
    turned = int(pairs * rope.partial_rotary_factor)
    return {"rope_freqs.weight": [1.0] * turned + [1e30] * (pairs - turned)}


def joined(tensors: dict[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    """What llama.cpp keeps as it is in files of Phi-3 and Gemma 4: q, k and v in one, gate and up in one."""
    if architecture == "gemma4":
        ups = {name: name.replace("gate", "up") for name in tensors if name.endswith("experts.gate_proj")}
        left = {name: value for name, value in tensors.items() if name not in {*ups, *ups.values()}}
        pairs = {name.replace("gate", "gate_up"): (tensors[name], tensors[up]) for name, up in ups.items()}
        return left | {name: np.concatenate(pair, axis=1) for name, pair in pairs.items()}
    if architecture != "phi3":
        return tensors
    groups = {
        "self_attn.qkv_proj": [f"self_attn.{x}_proj" for x in "qkv"],
        "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
    }
    left = dict(tensors)
    for whole, parts in groups.items():
        for first in [name for name in tensors if name.endswith(f"{parts[0]}.weight")]:
            layer = first.removesuffix(f"{parts[0]}.weight")
            left[f"{layer}{whole}.weight"] = np.concatenate([left.pop(f"{layer}{part}.weight") for part in parts])
    return left


def model_of(case: str) -> LM:
    class_, entries, _ = FAMILIES[case]
    return folders.target(**SIZES | {"architectures": [class_]} | entries)
