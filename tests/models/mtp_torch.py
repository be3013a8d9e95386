"""A model's layer for multi-token prediction as transformers computes it (`MtpLayer`)."""

import copy
import importlib

import numpy as np
import torch
from transformers import AutoConfig
from transformers.modeling_layers import MtpLayer

CLASSES = {"qwen3_5_text": ("qwen3_5", "Qwen3_5"), "glm4_moe": ("glm4_moe", "Glm4Moe")} | {
    "deepseek_v3": ("deepseek_v3", "DeepseekV3")
}


@torch.no_grad()
def outputs(entries: dict, tensors: dict[str, np.ndarray], embeddings: np.ndarray, features: np.ndarray) -> np.ndarray:
    """What the layer gives at each slot of a text, `[b, n, h]`.

    Args:
        tensors: by the names that the layer has in transformers; experts have tensors of their own.
    """
    folder, prefix = CLASSES[entries["model_type"]]
    code = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    config = AutoConfig.for_model(**copy.deepcopy(entries))  # transformers writes into nested entries
    if "layer_types" in config.to_dict():
        config.layer_types = ["full_attention"] * (config.num_hidden_layers + 1)
    config._attn_implementation = config._experts_implementation = "eager"
    classes = getattr(code, f"{prefix}DecoderLayer"), getattr(code, f"{prefix}RMSNorm")
    layer = MtpLayer(config, *classes, config.num_hidden_layers - 1).eval()
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in stacked(tensors).items()})
    rotary = getattr(code, f"{prefix}TextRotaryEmbedding", None) or getattr(code, f"{prefix}RotaryEmbedding")
    x, length = torch.tensor(embeddings), embeddings.shape[1]
    angles = rotary(config)(x, torch.arange(length)[None])
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    return layer(x, torch.tensor(features), angles, mask, torch.arange(length)[None], None).numpy()


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors with those of experts in stacks."""
    whole = {name: value for name, value in tensors.items() if ".experts." not in name}
    count = sum(name.endswith(".gate_proj.weight") and ".experts." in name for name in tensors)
    block = "mtp_block.mlp.experts."

    def part(expert: int, name: str) -> np.ndarray:
        return tensors[f"{block}{expert}.{name}_proj.weight"]

    if count:
        both = [np.concatenate([part(i, "gate"), part(i, "up")]) for i in range(count)]
        whole[f"{block}gate_up_proj"] = np.stack(both)
        whole[f"{block}down_proj"] = np.stack([part(i, "down") for i in range(count)])
    return whole
