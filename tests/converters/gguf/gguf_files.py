"""GGUF files of small models, as llama.cpp's converters write them."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.converters import folders
from tests.converters.gguf.gguf_sizes import add_sizes

gguf = pytest.importorskip("gguf")

# Wide enough for blocks of 32.
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 300}
KEYS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
LLAMA_KEYS = KEYS | {"post_attention_layernorm": "ffn_norm"}
GEMMA_KEYS = KEYS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
AROUND = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def own_name(name: str, architecture: str) -> str:
    """A tensor's name in a GGUF file."""
    module, _, kind = name.rpartition(".")
    if module in AROUND:
        return f"{AROUND[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    return f"blk.{layer}.{(GEMMA_KEYS if 'gemma' in architecture else LLAMA_KEYS)[module]}.{kind}"


def permuted(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows in llama.cpp's order, as convert_hf_to_gguf.py has it."""
    return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def stored(name: str, value: np.ndarray, architecture: str, heads: tuple[int, int]) -> np.ndarray:
    """A tensor's values in a GGUF file."""
    if "gemma" in architecture and name.endswith("norm.weight"):
        return value + np.float32(1)
    for projection, count in zip(("q_proj.", "k_proj."), heads, strict=True):
        if architecture == "llama" and projection in name:
            return permuted(value, count)
    return value


def write(
    path: pathlib.Path,
    model: Any,
    architecture: str = "llama",
    *,
    type: str | Callable[[str], str] = "F32",
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    tokenizer: bool = True,
    pre: str = "smollm",
) -> pathlib.Path:
    """A GGUF file of this model, its matrices of this type, or of one that follows from a matrix's own name."""
    c = model.config
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, c)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[value.__class__]
        add(key, value)
    if tokenizer:
        add_byte_level(writer, c.vocab_size, pre)
    for name, value in folders.tensors(model).items():
        value = stored(name, value, architecture, (c.num_attention_heads, c.num_key_value_heads))
        own = own_name(name, architecture)
        if value.ndim == 1:
            writer.add_tensor(own, value)
        else:
            kind = gguf.GGMLQuantizationType[type if isinstance(type, str) else type(own)]
            writer.add_tensor(own, gguf.quantize(value, kind), raw_dtype=kind)
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_byte_level(writer: Any, size: int, pre: str) -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "he", "ll", "hell", "Ġw", "ĠĠ", "12", "wow"]
    unused = [f"[PAD{i}]" for i in range(len(tokens), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + unused)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3) + [5] * len(unused))
    writer.add_token_merges(["h e", "l l", "he ll", "Ġ w", "Ġ Ġ", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template(TEMPLATE)


def add_sentencepiece(writer: Any, prefix: bool, kind: str = "llama") -> None:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", "  ", *bytes_, "ab", "▁a", "▁", "a", "b"]
    writer.add_tokenizer_model(kind)
    if kind == "gemma4":
        writer.add_token_merges(["▁ ▁", "a b", "▁ a"])
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * 4 + [0.0] * 256 + [-1.0, -2.0, -3.0, -4.0, -5.0])
    writer.add_token_types([2, 3, 3, 4, *[6] * 256, *[1] * 5])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(prefix)
