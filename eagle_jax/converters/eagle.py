"""EAGLE-1 and EAGLE-2 heads in the format their authors publish (SafeAILab), in and out.

Both use the same weights. The tensors are the truth about every size and bias; published configs are wrong about some.
The config supplies what no tensor shows: rotary settings, epsilon, the size of one head.
"""

import functools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from eagle_jax.config import EagleConfig, LlamaConfig
from eagle_jax.converters import hf_config, hf_rope, names
from eagle_jax.converters.files import TensorInfo, Weights, read_json
from eagle_jax.converters.writing import write_folder
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM

EMBEDDING = "embed_tokens.weight"
FC = "fc.weight"

RULES = (*names.linear("fc", "fc"), *names.decoder_layer(""))

# Where a head's config is silent: what the authors' code takes.
ABSENT_EPS = 1e-6
ABSENT_CONTEXT = 2048

# Said by tensors: sizes, biases, and that a head for a mixture of experts has none itself.
SHOWN_BY_TENSORS = frozenset(
    """
    hidden_size intermediate_size num_attention_heads num_key_value_heads num_hidden_layers vocab_size
    bias qkv_bias attention_bias mlp_bias num_local_experts num_experts_per_tok router_aux_loss_coef
    output_router_logits router_jitter_noise tie_word_embeddings model_type architectures
    """.split()
)
WINDOW = {"sliding_window", "use_sliding_window", "max_window_layers"}
READ = SHOWN_BY_TENSORS | WINDOW | {*hf_rope.KEYS, "head_dim", "rms_norm_eps", "max_position_embeddings"}


def load_head(folder: str | pathlib.Path, target: LM, dtype: Any = None) -> Head:
    """The EAGLE-1/2 head in a folder: `config.json` and weights, safetensors first, else `.bin` through PyTorch.

    A head may bring its own copy of the embedding table; its shape is checked and the target's table is used.

    Args:
        folder: a head's folder.
        target: the model it drafts for.
        dtype: `float32`, `bfloat16` or `float16`; None keeps what `fc` is stored in.

    Raises:
        FileNotFoundError: the folder, its config, or part of its weights is not there.
        ValueError: a head of another method, one that does not fit the target, a config key or tensor that is not
            understood, or a damaged file.
        ImportError: the weights are `.bin` files and PyTorch is not installed.
    """
    folder = pathlib.Path(folder)
    wanted = None if dtype is None else names.float_dtype(dtype)
    weights = Weights(folder)
    config = read_head_config(weights)
    check_fit(weights, config, target.config)
    chosen = names.stored_dtype(weights.info[FC]) if wanted is None else wanted
    return Head(params=names.read_params(weights, RULES, shapes(config), chosen), config=config)


def save_head(head: Head, folder: str | pathlib.Path, *, target: LM | None = None) -> None:
    """Writes a head as published, in safetensors; `load_head` reads it back.

    Args:
        target: also write its embedding table, for readers that insist on finding it with the head.

    Raises:
        ValueError: a rotary embedding that the format cannot express.
        FileExistsError: the folder holds other weights.
    """
    layers = head.config.layers
    entries: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    entries |= {name: getattr(layers, name) for name in (*hf_config.SIZES, "num_key_value_heads", "head_dim")}
    entries |= {name: getattr(layers, name) for name in ("max_position_embeddings", "rms_norm_eps")}
    entries |= hf_rope.rope_to_hf(layers.rope, layers.max_position_embeddings)
    entries |= {"bias": head.config.fc_bias, "qkv_bias": layers.qkv_bias or layers.attention_bias}
    entries |= {"sliding_window": layers.sliding_window, "tie_word_embeddings": False}
    entries["torch_dtype"] = head.dtype.name
    write_folder(pathlib.Path(folder), entries, _tensors(head, target))


def is_eagle1(info: Mapping[str, TensorInfo]) -> bool:
    """Whether tensors of these names and shapes are an EAGLE-1/2 head: `fc` takes two vectors, not three features."""
    return FC in info and "layers.0.self_attn.q_proj.weight" in info and not is_eagle3(info)


def is_eagle3(info: Mapping[str, TensorInfo]) -> bool:
    """Whether they are an EAGLE-3 head, in the authors' naming or in that of vLLM's speculators."""
    named = "d2t" in info or any(key.startswith("midlayer.") for key in info)
    shape = info[FC].shape if FC in info else ()
    return named or (len(shape) == 2 and shape[1] == 3 * shape[0])


def read_head_config(weights: Weights) -> EagleConfig:
    """The configuration of the head in these files, from its tensors and its `config.json`.

    Raises:
        ValueError: not an EAGLE-1/2 head, or one that is not understood.
    """
    folder, info = weights.folder, weights.info
    if is_eagle3(info):
        raise ValueError(
            f"{folder} holds an EAGLE-3 head, which reads three target features; expected EAGLE-1 or EAGLE-2"
        )
    if not is_eagle1(info):
        raise ValueError(
            f"{folder} holds no EAGLE-1/2 head; expected the tensors {FC} and layers.0.self_attn.q_proj.weight"
        )
    path = folder / "config.json"
    entries = read_json(path)
    try:
        hf_config.account(entries, READ, hf_config.FIXED, hf_config.IGNORED)
        config = _config(info, entries)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    names.check(weights, RULES, shapes(config), ignored=(re.escape(EMBEDDING),))
    return config


def check_fit(weights: Weights, head: EagleConfig, target: LlamaConfig) -> None:
    """Refuses a head that was made for another target, as far as shapes can tell."""
    if head.layers.hidden_size != target.hidden_size:
        raise ValueError(
            f"the head in {weights.folder} reads features of {head.layers.hidden_size} numbers; "
            f"the target's have {target.hidden_size}, so it was made for another model"
        )
    table = weights.info.get(EMBEDDING)
    expected = (target.vocab_size, target.hidden_size)
    if table is not None and table.shape != expected:
        raise ValueError(
            f"the head in {weights.folder} has an embedding table of {list(table.shape)}; "
            f"the target's is {list(expected)}, so it was made for another model"
        )
    if head.layers.vocab_size != target.vocab_size:
        raise ValueError(
            f"the head in {weights.folder} was made for a vocabulary of {head.layers.vocab_size} tokens; "
            f"the target has {target.vocab_size}"
        )


def shapes(config: EagleConfig) -> names.Params:
    """The parameter tree, of shapes."""
    return jax.eval_shape(functools.partial(Head.init, config), jax.random.key(0)).params


def _tensors(head: Head, target: LM | None) -> Iterator[tuple[str, np.ndarray]]:
    yield from names.tensors(RULES, head.params)
    if target is not None:
        yield EMBEDDING, np.asarray(target.params["embed_tokens"]["embedding"].astype(head.dtype))


def _config(info: Mapping[str, TensorInfo], entries: Mapping[str, Any]) -> EagleConfig:
    def rows(key: str) -> int:
        if key not in info or len(info[key].shape) != 2:
            raise ValueError(f"the weights lack a matrix {key}; expected one in every EAGLE-1/2 head")
        return info[key].shape[0]

    hidden = rows(FC)
    q, k = (rows(f"layers.0.self_attn.{x}_proj.weight") for x in "qk")
    size = hf_config.head_dim(entries, hidden, hf_config.integer(entries, "num_attention_heads"))
    if q % size or k % size:
        raise ValueError(f"q_proj and k_proj with {q} and {k} rows are no whole number of heads of head_dim={size}")
    context = hf_config.integer(entries, "max_position_embeddings", ABSENT_CONTEXT)
    whole_bias = "layers.0.self_attn.o_proj.bias" in info
    layers = LlamaConfig(
        vocab_size=info[EMBEDDING].shape[0] if EMBEDDING in info else hf_config.integer(entries, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=rows("layers.0.mlp.gate_proj.weight"),
        num_hidden_layers=1 + max(int(i) for i in re.findall(r"^layers\.(\d+)\.", "\n".join(info), re.MULTILINE)),
        num_attention_heads=q // size,
        num_key_value_heads=k // size,
        head_dim=size,
        max_position_embeddings=context,
        rms_norm_eps=hf_config.number(entries, "rms_norm_eps", ABSENT_EPS),
        rope=hf_rope.rope_from_hf(entries, context),
        attention_bias=whole_bias,
        qkv_bias="layers.0.self_attn.q_proj.bias" in info and not whole_bias,
        mlp_bias="layers.0.mlp.gate_proj.bias" in info,
        sliding_window=_window(entries),
    )
    return EagleConfig(layers=layers, fc_bias="fc.bias" in info)


def _window(entries: Mapping[str, Any]) -> int | None:
    """Qwen2's configs state a window and switch it off."""
    if entries.get("sliding_window") is None or not hf_config.flag(entries, "use_sliding_window", True):
        return None
    return hf_config.integer(entries, "sliding_window")
