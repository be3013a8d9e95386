"""GGUF files of further families: names by the gguf library's own table, and the model that the folder has."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

from eagle_jax.converters import llama, load_target, names
from eagle_jax.models.lm import LM
from tests.converters import folders
from tests.converters.gguf_sizes import add_sizes
from tests.converters.test_gguf import add_byte_level, permuted

gguf = pytest.importorskip("gguf")

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
# architecture -> class, entries of config.json, entries of the metadata
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
PERMUTED = ("granite", "granitemoe", "smollm3")


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


def write(path: pathlib.Path, model: LM, architecture: str, metadata: Mapping[str, Any]) -> pathlib.Path:
    c = model.config
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(kind, c.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, c)
    for key, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[value.__class__]
        add(f"{architecture}.{key}", value)
    add_byte_level(writer, c.vocab_size, "smollm")
    for name, value in joined(parameters(model), architecture).items():
        for projection, heads in (("q_proj.", c.num_attention_heads), ("k_proj.", c.num_key_value_heads)):
            value = permuted(value, heads) if architecture in PERMUTED and projection in name else value
        writer.add_tensor(own_name(name, table, value.ndim == 3), np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def joined(tensors: dict[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    """Phi-3's, which llama.cpp keeps as they are in its files: q, k and v in one, gate and up in one."""
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


def model_of(architecture: str) -> LM:
    class_, entries, _ = FAMILIES[architecture]
    return folders.target(**SIZES | {"architectures": [class_]} | entries)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_model_is_that_of_the_folder(tmp_path, architecture):
    model = model_of(architecture)
    read = load_target(write(tmp_path / "m.gguf", model, architecture, FAMILIES[architecture][2]))
    assert read.config == model.config
    jax.tree.map(np.testing.assert_array_equal, read.params, model.params)


def test_widths_that_do_not_agree_are_refused(tmp_path):
    metadata = FAMILIES["minimax-m2"][2] | {"expert_feed_forward_length": 95}
    with pytest.raises(ValueError, match=r"minimax-m2\.expert_feed_forward_length 95 beside 96 under another name"):
        load_target(write(tmp_path / "m.gguf", model_of("minimax-m2"), "minimax-m2", metadata))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_is_not_known_is_refused_by_name(tmp_path, architecture):
    model, metadata = model_of(architecture), FAMILIES[architecture][2]
    path = write(tmp_path / "m.gguf", model, architecture, metadata | {"attention.slope": 2.0})
    with pytest.raises(ValueError, match=rf"{architecture}\.attention\.slope 2\.0, which is not known"):
        load_target(path)
