"""A Qwen3.5 model's layer for multi-token prediction, of transformers' own parts; transformers leaves it unread."""

import numpy as np
import torch
from transformers import AutoConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
)

ATTENTION = ["full_attention"]


@torch.no_grad()
def outputs(entries: dict, tensors: dict[str, np.ndarray], embeddings: np.ndarray, features: np.ndarray) -> np.ndarray:
    """What the layer gives at each slot of a text, `[b, n, h]`."""
    config = AutoConfig.for_model(**entries | {"num_hidden_layers": 1, "layer_types": ATTENTION})
    config._attn_implementation = "eager"
    layer, norms = Qwen3_5DecoderLayer(config, 0).eval(), {}
    inner = {name.removeprefix("mtp.layers.0."): value for name, value in tensors.items() if ".layers.0." in name}
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in inner.items()})
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        norms[name] = Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        norms[name].load_state_dict({"weight": torch.from_numpy(tensors[f"mtp.{name}.weight"])})
    parts = (
        norms["pre_fc_norm_embedding"](torch.tensor(embeddings)),
        norms["pre_fc_norm_hidden"](torch.tensor(features)),
    )
    x = torch.cat(parts, dim=-1) @ torch.from_numpy(tensors["mtp.fc.weight"]).T
    length = x.shape[1]
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    angles = Qwen3_5TextRotaryEmbedding(config)(x, torch.arange(length)[None])
    out = layer(x, position_embeddings=angles, attention_mask=mask)
    return norms["norm"](out[0] if isinstance(out, tuple) else out).numpy()
