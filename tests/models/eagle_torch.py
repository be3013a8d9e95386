"""The EAGLE-1 draft head in PyTorch, written from the published description alone and as plainly as possible.

Slot i takes the embedding of token i + 1 and the feature of token i, stands at position i, and guesses feature i + 1. A
guess is the feature of the next slot. Every guess is computed from the whole sequence anew: no cache to be wrong.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from parity_cases import PROMPTS, ROWS, STEPS, Case, head_shapes, rows, weights
from torch.nn.functional import linear, silu

State = Mapping[str, torch.Tensor]


@torch.no_grad()
def answers(case: Case) -> dict[str, np.ndarray]:
    """Guesses: `whole` `[rows, slots, h]`, and `drafted` `[rows, steps, h]`, each fed back as the next feature."""
    state = {name: torch.from_numpy(v) for name, v in weights(case, head_shapes(case.entries)).items()}
    embeddings, features = inputs(case)
    whole = torch.stack([guess(state, case.entries, embeddings[row], features[row]) for row in range(ROWS)])
    drafted = [_draft(state, case.entries, embeddings[row], features[row], PROMPTS[row]) for row in range(ROWS)]
    return {"whole": whole.numpy(), "drafted": torch.stack(drafted).numpy()}


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings and features of every slot."""
    both = torch.from_numpy(rows(case, PROMPTS[-1] + STEPS, 2 * case.entries["hidden_size"]))
    return tuple(both.chunk(2, dim=-1))


def guess(state: State, config: Mapping[str, Any], embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Next features `[n, h]` for `n` slots: `layers(fc([embedding ; feature]))`, no norm at either end."""
    x = linear(torch.cat([embeddings, features], dim=-1), state["fc.weight"], state.get("fc.bias"))
    for i in range(config["num_hidden_layers"]):
        part = {name.removeprefix(f"layers.{i}."): v for name, v in state.items() if name.startswith(f"layers.{i}.")}
        entering = x if i == 0 else norm(x, part["input_layernorm.weight"], config)
        x = x + attention(part, config, entering)
        y = norm(x, part["post_attention_layernorm.weight"], config)
        x = x + mlp(part, y)
    return x


def _draft(
    state: State, config: Mapping[str, Any], embeddings: torch.Tensor, features: torch.Tensor, true: int
) -> torch.Tensor:
    """Guesses after `true` slots with the target's features: each becomes the feature of the slot that follows."""
    known, drafted = features[:true], []
    for step in range(STEPS):
        out = guess(state, config, embeddings[: true + step], known)[-1:]
        drafted.append(out[0])
        known = torch.cat([known, out])
    return torch.stack(drafted)


def attention(part: State, config: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Causal attention, by heads, one after the other; within a window of positions, if the config has one."""
    n, heads, kv_heads = x.shape[0], config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim", config["hidden_size"] // heads)

    def project(name: str, count: int) -> torch.Tensor:
        out = linear(x, part[f"self_attn.{name}_proj.weight"], part.get(f"self_attn.{name}_proj.bias"))
        return out.view(n, count, size).transpose(0, 1)

    q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
    if "self_attn.q_norm.weight" in part:
        q, k = (norm(x, part[f"self_attn.{name}_norm.weight"], config) for name, x in (("q", q), ("k", k)))
    q, k = _rotate(q, config), _rotate(k, config)
    hidden = torch.ones(n, n).triu(1).bool()
    if config.get("sliding_window") is not None:
        hidden |= torch.ones(n, n).tril(-config["sliding_window"]).bool()
    mixed = []
    for head in range(heads):
        shared = head // (heads // kv_heads)
        scores = q[head] @ k[shared].T / math.sqrt(size)
        scores = scores.masked_fill(hidden, -math.inf)
        mixed.append(scores.softmax(dim=-1) @ v[shared])
    return linear(torch.cat(mixed, dim=-1), part["self_attn.o_proj.weight"])


def mlp(part: State, x: torch.Tensor) -> torch.Tensor:
    gated = silu(linear(x, part["mlp.gate_proj.weight"])) * linear(x, part["mlp.up_proj.weight"])
    return linear(gated, part["mlp.down_proj.weight"])


def _rotate(x: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Turns the pair (x_j, x_{j + size/2}) at position t by the angle t / theta^(2j / size)."""
    _, n, size = x.shape
    scaling = config.get("rope_scaling") or {"factor": 1.0}
    positions = torch.arange(n, dtype=torch.float64) / scaling["factor"]
    angles = positions[:, None] * config["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    turned = torch.view_as_complex(torch.stack(x.double().chunk(2, dim=-1), dim=-1).contiguous())
    turned = turned * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def norm(x: torch.Tensor, scale: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * scale
