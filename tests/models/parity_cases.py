"""The models that are compared with PyTorch: configs that vary one flag each, and weights and texts drawn from seeds.

Nothing here needs PyTorch. Weights come from `numpy.random.RandomState`, whose streams never change between versions,
so the golden files hold the answers alone.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from latent_cases import LATENT, latent_shapes

VOCABULARY = 48
ROWS, LENGTH = 2, 20  # every text, in tokens
PROMPTS = (7, 13)  # what is prefilled of each row before tokens come one by one
STEPS = 6

_TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
_QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 5}
_QWEN3 = _QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 12}
_MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 5}
_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}
_GEMMA2 = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh"} | {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "sliding_window": 5,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
_GEMMA3 = _GEMMA2 | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1000.0,
    "rope_local_base_freq": 10.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "sliding_window_pattern": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
# With this context and theta each of the three moves the bands, though a head has only four pairs to turn.
_YARN_BANDS = _YARN | {
    "original_max_position_embeddings": 64,
    "beta_fast": 3.0,
    "beta_slow": 0.5,
    "truncate": False,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One model: a name and its `config.json`."""

    name: str
    entries: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    @property
    def random(self) -> np.random.RandomState:
        return np.random.RandomState(zlib.crc32(self.name.encode()))


TARGETS = tuple(
    Case(name, _TARGET | entries)
    for name, entries in {
        "gqa": {},
        "mha": {"num_key_value_heads": 4},
        "mqa": {"num_key_value_heads": 1},
        "theta": {"rope_theta": 500000.0, "rms_norm_eps": 1e-6},
        "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
        "dynamic": {"max_position_embeddings": 10, "rope_scaling": {"type": "dynamic", "factor": 3.0}},
        "llama3": {"rope_theta": 500000.0, "rope_scaling": _LLAMA3},
        "yarn": {"rope_scaling": _YARN},
        "yarn_bands": {"rope_theta": 100.0, "rope_scaling": _YARN_BANDS},
        "yarn_scaled": {"rope_scaling": _YARN | {"attention_factor": 0.7}},
        "yarn_mscale": {"rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}},
        "rope_parameters": {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}},
        "attention_bias": {"attention_bias": True},
        "mlp_bias": {"mlp_bias": True},
        "tied": {"tie_word_embeddings": True},
        "head_dim": {"head_dim": 12},
        "mistral": _MISTRAL | {"sliding_window": None},
        "sliding_window": _MISTRAL | {"sliding_window": 5},
        "qwen2": _QWEN2,
        "qwen2_window": _QWEN2 | {"use_sliding_window": True, "max_window_layers": 1},
        "qwen3": _QWEN3,
        "qwen3_layer_types": _QWEN3
        | {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"], "attention_bias": True},
        "gemma2": _GEMMA2,
        "gemma3": _GEMMA3,
        "mixtral": _MIXTRAL,
        "qwen3_moe": _QWEN3_MOE | {"norm_topk_prob": True},
        "qwen3_moe_dense_layers": _QWEN3_MOE
        | {"num_hidden_layers": 3, "mlp_only_layers": [2], "decoder_sparse_step": 2},
    }.items()
)

_HEAD = {name: value for name, value in _TARGET.items() if name != "num_hidden_layers"} | {"num_hidden_layers": 1}

HEADS = tuple(
    Case(f"eagle_{name}", _HEAD | entries)
    for name, entries in {
        "bias": {},
        "no_bias": {"bias": False},
        "qkv_bias": {"bias": True, "qkv_bias": True},
        "mha": {"bias": False, "num_key_value_heads": 4},
        "theta": {"bias": False, "rope_theta": 500000.0},
        "linear": {"bias": True, "rope_scaling": {"type": "linear", "factor": 2.0}},
        "head_dim": {"bias": False, "head_dim": 12},
        "two_layers": {"bias": False, "num_hidden_layers": 2},
    }.items()
)

_HEAD3 = _HEAD | {"draft_vocab_size": VOCABULARY, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}

HEADS3 = tuple(
    Case(f"eagle3_{name}", _HEAD3 | entries)
    for name, entries in {
        "whole_vocabulary": {},
        "trimmed": {"draft_vocab_size": 20, "rope_theta": 500000.0},
        "norm_before_residual": {"norm_before_residual": True},
        "norm_before_fc": {"norm_before_fc": True},
        "fc_norm": {"fc_norm": True},
        "norm_output": {"norm_output": True},
        "target_hidden_size": {"target_hidden_size": 24, "own_embedding": True},
        "own_embedding": {"own_embedding": True, "num_key_value_heads": 4},
        "head_dim": {"head_dim": 12},
        "two_layers": {"num_hidden_layers": 2},
        "sliding_window": {"sliding_window": 5},
        "latent": LATENT | {"fc_norm": True, "norm_output": True},
        "latent_yarn": LATENT
        | {
            "q_lora_rank": None,
            "rope_scaling": _YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        },
    }.items()
)


def texts(case: Case) -> np.ndarray:
    """Token ids `[ROWS, LENGTH]`."""
    return case.random.randint(0, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)


def rows(case: Case, count: int, size: int) -> np.ndarray:
    """Vectors `[ROWS, count, size]`: stand-ins for features and embeddings."""
    return case.random.standard_normal((ROWS, count, size)).astype(np.float32)


def weights(case: Case, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Tensors of the given shapes by name: norms around 1, biases and matrices around 0.

    Matrices keep the size of what they map, as trained ones do. With larger ones attention scores grow to 50 and
    float32 itself is off by 1e-4.
    """
    random = case.random
    drawn = {}
    for name in sorted(shapes):
        values = random.standard_normal(shapes[name])
        if "norm" in name:
            values = 1 + 0.2 * values
        else:
            values *= 0.3 if name.endswith("bias") else shapes[name][-1] ** -0.5
        drawn[name] = values.astype(np.float32)
    return drawn


def head_shapes(entries: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The state dict of an EAGLE-1/2 head as published, without its copy of the embedding table."""
    h, inner, heads = entries["hidden_size"], entries["intermediate_size"], entries["num_attention_heads"]
    size = entries.get("head_dim", h // heads)
    q, kv = heads * size, entries["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, 2 * h)}
    if entries.get("bias", True):
        shapes["fc.bias"] = (h,)
    for i in range(entries["num_hidden_layers"]):
        attention, mlp = f"layers.{i}.self_attn", f"layers.{i}.mlp"
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{attention}.{name}_proj.weight"] = (width, h)
            if entries.get("qkv_bias"):
                shapes[f"{attention}.{name}_proj.bias"] = (width,)
        shapes[f"{attention}.o_proj.weight"] = (h, q)
        shapes |= {f"{mlp}.gate_proj.weight": (inner, h), f"{mlp}.up_proj.weight": (inner, h)}
        shapes[f"{mlp}.down_proj.weight"] = (h, inner)
        shapes[f"layers.{i}.post_attention_layernorm.weight"] = (h,)
        if i > 0:
            shapes[f"layers.{i}.input_layernorm.weight"] = (h,)
    return shapes


def head3_shapes(entries: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The float tensors of an EAGLE-3 head as published; the layers of one that has several are numbered."""
    h, inner, heads = entries["hidden_size"], entries["intermediate_size"], entries["num_attention_heads"]
    size, taps = entries.get("head_dim", h // heads), entries["eagle_aux_hidden_state_layer_ids"]
    q, kv, tap = heads * size, entries["num_key_value_heads"] * size, entries.get("target_hidden_size", h)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, len(taps) * tap), "norm.weight": (h,)}
    shapes["lm_head.weight"] = (entries["draft_vocab_size"], h)
    if entries.get("norm_before_fc"):
        shapes["input_norm.weight"] = (len(taps) * tap,)
    if entries.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (tap,) for i in range(len(taps))}
    if entries.get("own_embedding"):
        shapes["embed_tokens.weight"] = (VOCABULARY, h)
    for i, layer in enumerate(head3_layers(entries)):
        read = 2 * h if i == 0 else h
        if "kv_lora_rank" in entries:
            shapes |= {f"{layer}.self_attn.{name}": shape for name, shape in latent_shapes(entries, read).items()}
        else:
            for name, width in (("q", q), ("k", kv), ("v", kv)):
                shapes[f"{layer}.self_attn.{name}_proj.weight"] = (width, read)
                if entries.get("qkv_bias"):
                    shapes[f"{layer}.self_attn.{name}_proj.bias"] = (width,)
                if entries.get("qk_norm") and name != "v":
                    shapes[f"{layer}.self_attn.{name}_norm.weight"] = (size,)
            shapes[f"{layer}.self_attn.o_proj.weight"] = (h, q)
        shapes |= {f"{layer}.mlp.gate_proj.weight": (inner, h), f"{layer}.mlp.up_proj.weight": (inner, h)}
        shapes[f"{layer}.mlp.down_proj.weight"] = (h, inner)
        for norm in ("input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if i == 0 else [])):
            shapes[f"{layer}.{norm}.weight"] = (h,)
    return shapes


def head3_layers(entries: Mapping[str, Any]) -> list[str]:
    """What the decoder layers are called."""
    layers = entries["num_hidden_layers"]
    return ["midlayer"] if layers == 1 else [f"layers.{i}" for i in range(layers)]


def head3_state(case: Case) -> dict[str, np.ndarray]:
    """An EAGLE-3 checkpoint: weights, and the mapping of a draft vocabulary that is not the whole one."""
    return weights(case, head3_shapes(case.entries)) | vocabulary_mapping(case)


def vocabulary_mapping(case: Case) -> dict[str, np.ndarray]:
    """The tensors that name the drafted tokens of a head; none where it drafts all."""
    drafted = case.entries.get("draft_vocab_size", VOCABULARY)
    if drafted == VOCABULARY:
        return {}
    kept = np.sort(case.random.permutation(VOCABULARY)[:drafted])
    return {"d2t": kept - np.arange(drafted), "t2d": np.isin(np.arange(VOCABULARY), kept)}


def head3_inputs(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens `[ROWS, n]`, the three streams that the target gives at each, and its embedding table."""
    tap = case.entries.get("target_hidden_size", case.entries["hidden_size"])
    table = case.random.standard_normal((VOCABULARY, case.entries["hidden_size"])).astype(np.float32)
    return texts(case), rows(case, LENGTH, 3 * tap), table
