"""The EAGLE-3 draft head in PyTorch, written from the published description alone and as plainly as possible.

Slot i takes the embedding of token i + 1 and a feature of token i, and stands at position i. The feature is `fc` of
three of the target's hidden states where the target has seen token i, else what the head itself put out at slot i - 1.
Every output is computed from the whole sequence anew: no cache to be wrong.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from eagle_torch import State, attention, mlp, norm
from parity_cases import PROMPTS, ROWS, STEPS, Case, head3_inputs, head3_layers, head3_state
from torch.nn.functional import linear


@torch.no_grad()
def answers(case: Case) -> dict[str, np.ndarray]:
    """Logits over true features, `whole` `[rows, n - 1, d]`; and of drafting after `PROMPTS` slots of them, step by
    step, the outputs `drafted` `[rows, steps, h]` and the likeliest tokens `likeliest` `[rows, steps]`.
    """
    state = {name: torch.from_numpy(value) for name, value in head3_state(case).items()}
    tokens, streams, table = map(torch.from_numpy, head3_inputs(case))
    table = state.get("embed_tokens.weight", table)
    whole, drafted, likeliest = [], [], []
    for row in range(ROWS):
        embeddings, true = table[tokens[row, 1:].long()], features(state, case.entries, streams[row, :-1])
        whole.append(logits(state, case.entries, outputs(state, case.entries, embeddings, true)))
        known, out = true[: PROMPTS[row]], []
        for step in range(STEPS):
            out.append(outputs(state, case.entries, embeddings[: len(known)], known)[-1])
            known = torch.cat([known, out[-1][None]])
        drafted.append(torch.stack(out))
        best = logits(state, case.entries, drafted[-1]).argmax(dim=-1)
        likeliest.append(best + state["d2t"][best] if "d2t" in state else best)
    return {
        "whole": torch.stack(whole).numpy(),
        "drafted": torch.stack(drafted).numpy(),
        "likeliest": torch.stack(likeliest).numpy(),
    }


def features(state: State, config: Mapping[str, Any], streams: torch.Tensor) -> torch.Tensor:
    """`fc` of the target's three hidden states, side by side in `streams` `[n, 3 t]`."""
    if config.get("fc_norm"):
        parts = streams.chunk(3, dim=-1)
        streams = torch.cat([norm(part, state[f"fc_norm.{i}.weight"], config) for i, part in enumerate(parts)], dim=-1)
    if config.get("norm_before_fc"):
        streams = norm(streams, state["input_norm.weight"], config)
    return linear(streams, state["fc.weight"])


def outputs(state: State, config: Mapping[str, Any], embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """What the head puts out at each of `n` slots and, while drafting, reads at the next one."""
    x = features
    for i, layer in enumerate(head3_layers(config)):
        part = {name.removeprefix(f"{layer}."): v for name, v in state.items() if name.startswith(f"{layer}.")}
        if i == 0:
            feature = norm(features, part["hidden_norm.weight"], config)
            embedding = norm(embeddings, part["input_layernorm.weight"], config)
            if config.get("norm_before_residual"):
                x = feature
            mixer = latent_attention if "kv_lora_rank" in config else attention
            x = x + mixer(part, config, torch.cat([embedding, feature], dim=-1))
        else:
            x = x + attention(part, config, norm(x, part["input_layernorm.weight"], config))
        x = x + mlp(part, norm(x, part["post_attention_layernorm.weight"], config))
    return norm(x, state["norm.weight"], config) if config.get("norm_output") else x


def latent_attention(part: State, config: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Causal attention whose keys and values are maps of one latent vector a token, written out head by head."""
    n, heads, plain, value = len(x), *(config[k] for k in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim"))
    part = {name.removeprefix("self_attn.").removesuffix(".weight"): tensor for name, tensor in part.items()}
    if "q_proj" in part:
        q = linear(x, part["q_proj"])
    else:
        q = linear(norm(linear(x, part["q_a_proj"]), part["q_a_layernorm"], config), part["q_b_proj"])
    latent, shared_key = linear(x, part["kv_a_proj_with_mqa"]).split(
        [config["kv_lora_rank"], config["qk_rope_head_dim"]], dim=-1
    )
    kv = linear(norm(latent, part["kv_a_layernorm"], config), part["kv_b_proj"]).view(n, heads, plain + value)
    q, shared_key = q.view(n, heads, -1), rotate_neighbours(shared_key, config)
    scale = _stretch(config, "mscale_all_dim") ** 2 / math.sqrt(plain + config["qk_rope_head_dim"])
    mixed = []
    for head in range(heads):
        query = torch.cat([q[:, head, :plain], rotate_neighbours(q[:, head, plain:], config)], dim=-1)
        key = torch.cat([kv[:, head, :plain], shared_key], dim=-1)
        scores = (query @ key.T * scale).masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        mixed.append(scores.softmax(dim=-1) @ kv[:, head, plain:])
    return linear(torch.cat(mixed, dim=-1), part["o_proj"])


def rotate_neighbours(x: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Rotates the pair (x_2j, x_2j+1) at position t by t times the j-th frequency; YaRN slows the slow ones."""
    n, size = x.shape
    pairs = torch.arange(size // 2, dtype=torch.float64)
    frequencies, scaling = config["rope_theta"] ** (-2 * pairs / size), config.get("rope_scaling")
    if scaling is not None:
        original, log_theta = scaling["original_max_position_embeddings"], math.log(config["rope_theta"])
        fast, slow = (
            size * math.log(original / (2 * math.pi * scaling[name])) / (2 * log_theta)
            for name in ("beta_fast", "beta_slow")
        )
        low, high = max(math.floor(fast), 0), min(math.ceil(slow), size - 1)
        slowed = ((pairs - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (1 - slowed) + frequencies / scaling["factor"] * slowed
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequencies
    both = torch.view_as_complex(x.double().view(n, -1, 2).contiguous())
    rotated = both * torch.polar(torch.full_like(angles, _stretch(config, "mscale")), angles)
    return torch.view_as_real(rotated / _stretch(config, "mscale_all_dim")).reshape(n, size).to(x.dtype)


def _stretch(config: Mapping[str, Any], name: str) -> float:
    """`0.1 m ln(factor) + 1` of YaRN, for the multiple m of this name."""
    scaling = config.get("rope_scaling")
    return 1.0 if scaling is None else 0.1 * scaling[name] * math.log(scaling["factor"]) + 1


def logits(state: State, config: Mapping[str, Any], out: torch.Tensor) -> torch.Tensor:
    """Logits over the draft vocabulary."""
    normed = out if config.get("norm_output") else norm(out, state["norm.weight"], config)
    return linear(normed, state["lm_head.weight"])
