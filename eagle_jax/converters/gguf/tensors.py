"""The tensors of a GGUF file by their names in a HuggingFace checkpoint, with the values that they have there.

Three things differ: rows of q and k of the architectures that llama.cpp rotates by neighbours are in its order, Gemma's
norms hold their factors, which HuggingFace stores less 1, and the matrices of all experts are one tensor.
"""

import functools
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from eagle_jax.converters.families.tensors import TENSORS, stack_of
from eagle_jax.converters.gguf.blocks import BLOCK_TYPES, read_blocks
from eagle_jax.converters.gguf.file import GgufFile, GgufTensor, read_gguf
from eagle_jax.converters.gguf.rope import FACTORS
from eagle_jax.converters.gguf.rope import TENSORS as ROPE_TENSORS
from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.tensor_file import TensorInfo

_AROUND = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_LAYER = _LAYER | {"ffn_norm": "post_attention_layernorm"}
_BEHIND_LAYER = _LAYER | {  # the norms come after attention and MLP
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _experts(layout: str) -> dict[str, str]:
    """Returns the names of experts' and their router's parameters in a layout of `families.tensors`, by GGUF's."""
    tensors, names = TENSORS[layout], {}
    for part, name in tensors.experts.items():
        if not part.endswith("_bias"):
            names[f"ffn_{part}_exps.weight"] = stack_of(part)
        else:
            names[f"ffn_{part.removesuffix('_bias')}_exps.bias"] = name
    names |= {f"ffn_gate_inp.{kind}": f"{tensors.router}.{kind}" for kind in ("weight", "bias")}
    names |= {f"ffn_{part}_shexp.weight": f"{tensors.shared[0]}.{part}_proj.weight" for part in ("gate", "up", "down")}
    return names | {"exp_probs_b.bias": tensors.correction, "attn_sinks.weight": "self_attn.sinks"}


_GEMMA4_LAYER = {
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
# A layer for multi-token prediction, after the last.
_MTP_LAYER = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}

# Architecture -> the modules of a layer, and single parameters. Mistral's files call themselves llama.
LAYERS: Mapping[str, Mapping[str, str]] = {
    "llama": _LLAMA_LAYER,
    "qwen2": _LLAMA_LAYER,
    "qwen3": _LLAMA_LAYER,
    "gemma2": _GEMMA_LAYER,
    "gemma3": _GEMMA_LAYER,
    "gemma4": _GEMMA_LAYER | _experts("gemma4") | _GEMMA4_LAYER,
    "mistral3": _LLAMA_LAYER,
    "olmo2": _BEHIND_LAYER,
    "exaone4": _BEHIND_LAYER,
    "granite": _LLAMA_LAYER,
    "smollm3": _LLAMA_LAYER,
    "ernie4_5": _LLAMA_LAYER,
    "seed_oss": _LAYER | {"post_attention_norm": "post_attention_layernorm"},
    "hunyuan-dense": _LLAMA_LAYER
    | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    "phi3": _LLAMA_LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "granitemoe": _LLAMA_LAYER | _experts("granitemoe"),
    "olmoe": _LLAMA_LAYER | _experts("olmoe"),
    "minimax-m2": _LLAMA_LAYER | _experts("minimax_m2"),
    "glm4moe": _LAYER | {"post_attention_norm": "post_attention_layernorm"} | _experts("glm4_moe") | _MTP_LAYER,
    "gpt-oss": _LAYER | {"post_attention_norm": "post_attention_layernorm"} | _experts("gpt_oss"),
}
# Architectures whose rows of q and k llama.cpp has in its own order.
_PERMUTED = ("llama", "mistral3", "granite", "granitemoe", "smollm3")
_GEMMA = ("gemma2", "gemma3")

FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}

# Tensors that stay quantized where their type is in `BLOCK_TYPES`; the others are small.
_STAY_QUANTIZED = ("_proj.weight", "lm_head.weight", "embed_tokens.weight")


class GgufTensors:
    """A GGUF file as a `TensorFile`. Tensors are read from disk when they are taken."""

    def __init__(self, path: pathlib.Path):
        self._file = read_gguf(path)
        self._file_names = hf_names(self._file)
        self.info = {name: self._info(name) for name in self._file_names}

    def take(self, name: str) -> np.ndarray:
        """Returns the values as floats; blocks are expanded to float32."""
        value = _floats(self._tensor(name))
        if self._file.architecture in _GEMMA and name.endswith("norm.weight"):
            value = value - np.ones((), value.dtype)
        return self._in_order(name, value)

    def take_quantized(self, name: str) -> QuantizedTensor:
        """Returns codes, scales and minima of a matrix whose type is one of `BLOCK_TYPES`, as they are stored."""
        tensor = self._tensor(name)
        parts = read_blocks(tensor.data, tensor.shape[-1], tensor.type)
        minima = None if parts.minima is None else self._in_order(name, parts.minima)
        return QuantizedTensor(self._in_order(name, parts.codes), self._in_order(name, parts.scales), minima)

    def _tensor(self, name: str) -> GgufTensor:
        return self._file.tensors[self._file_names[name]]

    def _info(self, name: str) -> TensorInfo:
        tensor = self._tensor(name)
        if tensor.type in FLOATS:
            return TensorInfo(tensor.shape, np.dtype(FLOATS[tensor.type]).name, tensor.file)
        if tensor.type in BLOCK_TYPES and name.endswith(_STAY_QUANTIZED):
            quant_type = BLOCK_TYPES[tensor.type].quant_type
            block_type = f"{tensor.type}, kept as {quant_type}"
            quant_type = quant_type.over(tensor.shape[-1])
            return TensorInfo(tensor.shape, f"int{quant_type.bits}", tensor.file, quant_type, block_type)
        if not _expands(tensor.type):
            raise ValueError(
                f"{tensor.file} has tensor {self._file_names[name]} of type {tensor.type}, which cannot be expanded to "
                "floats"
            )
        # Blocks have a few bits and a scale of 16: bfloat16 unless another dtype is asked for.
        return TensorInfo(tensor.shape, "bfloat16", tensor.file, block_type=f"{tensor.type}, expanded to floats")

    def _in_order(self, name: str, value: np.ndarray) -> np.ndarray:
        """Returns the rows of q and k in HuggingFace's order.

        llama.cpp rotates neighbouring rows of a head, HuggingFace those half a head apart: row 2 i + j there is row
        j * c / 2 + i here, for heads of c rows.
        """
        projection = re.search(r"self_attn\.([qk])_proj\.", name)
        if self._file.architecture not in _PERMUTED or projection is None:
            return value
        heads = head_counts(self._file, self._file.architecture_metadata())[projection[1] == "k"]
        if len(value) % (2 * heads):
            raise ValueError(f"{name} has {len(value)} rows; expected an even number for each of {heads} heads")
        return value.reshape(heads, -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def hf_names(file: GgufFile) -> dict[str, str]:
    """Returns the file's own name of each tensor, by its name in a HuggingFace checkpoint.

    Raises:
        ValueError: an architecture or a name that is not known.
    """
    architecture = file.architecture
    if architecture not in LAYERS:
        raise ValueError(f"{file.path} has architecture {architecture!r}; expected one of {', '.join(LAYERS)}")
    names = {}
    for tensor in file.tensors:
        if tensor in ROPE_TENSORS.get(architecture, (FACTORS,)):
            continue
        layer = re.fullmatch(r"blk\.(\d+)\.([\w.]+)\.(weight|bias|scale)", tensor)
        name = _AROUND.get(tensor)
        if layer is not None:
            table = LAYERS[architecture]
            module = table.get(layer[2])
            inner = table.get(f"{layer[2]}.{layer[3]}") or (module and layer[3] != "scale" and f"{module}.{layer[3]}")
            name = f"model.layers.{layer[1]}.{inner}" if inner else None
        if name is None:
            raise ValueError(f"{file.path} has a tensor {tensor}, which is not known in a model of kind {architecture}")
        names[name] = tensor
    return names


def head_counts(file: GgufFile, metadata: Mapping[str, Any]) -> tuple[int, int]:
    """Returns numbers of query heads and of key/value heads.

    Args:
        stated: entries about the model, by their names after the architecture's.

    Raises:
        ValueError: they are not stated, or not one number for all layers.
    """
    heads = metadata.get("attention.head_count")
    kv_heads = metadata.get("attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads < 1 or kv_heads < 1:
        raise ValueError(
            f"{file.path} has {file.architecture}.attention.head_count and head_count_kv {heads} and {kv_heads}; "
            "expected numbers"
        )
    return heads, kv_heads


def _floats(tensor: GgufTensor) -> np.ndarray:
    if tensor.type in FLOATS:
        return tensor.data.view(FLOATS[tensor.type])
    import gguf

    data = tensor.data
    # the library takes 16 rows at a time; of longer ones it takes half as long
    together = math.gcd(math.prod(data.shape[:-1]), 16)
    rows = data.reshape(-1, together * data.shape[-1])
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[tensor.type]).reshape(*data.shape[:-1], -1)


@functools.cache
def _expands(type: str) -> bool:
    """Returns whether the gguf library expands this type; the test is one block of zeros."""
    import gguf

    kind = gguf.GGMLQuantizationType[type]
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
