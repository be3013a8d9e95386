"""The EAGLE-3 draft head in PyTorch, written from the published description alone and as plainly as possible.

Slot i takes the embedding of token i + 1 and a feature of token i, and stands at position i. The feature is `fc` of
three of the target's hidden states where the target has seen token i, else what the head itself put out at slot i - 1.
Every output is computed from the whole sequence anew: no cache to be wrong.
"""

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
            x = x + attention(part, config, torch.cat([embedding, feature], dim=-1))
        else:
            x = x + attention(part, config, norm(x, part["input_layernorm.weight"], config))
        x = x + mlp(part, norm(x, part["post_attention_layernorm.weight"], config))
    return norm(x, state["norm.weight"], config) if config.get("norm_output") else x


def logits(state: State, config: Mapping[str, Any], out: torch.Tensor) -> torch.Tensor:
    """Logits over the draft vocabulary."""
    normed = out if config.get("norm_output") else norm(out, state["norm.weight"], config)
    return linear(normed, state["lm_head.weight"])
