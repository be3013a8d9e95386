"""The loss of a P-EAGLE head in PyTorch, rollout by rollout: each anchor's text and mask rows as a sequence of its own.

`python tests/training/peagle_torch.py`, with PyTorch installed, writes the golden file. It never runs our own code.
"""

import pathlib

import numpy as np
import torch
from peagle_case import DECAY, DEPTHS, DRAFTED, EPS, HEAD_DIM, HEADS, KV_HEADS, MASK_TOKEN, THETA, state, text

GOLDEN = pathlib.Path(__file__).with_name("golden_peagle.npz")


def norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def rotate(x):
    """Heads `[n, h, c]` at positions 0, 1, ..."""
    half = HEAD_DIM // 2
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] * THETA ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos().repeat(1, 2)[:, None], angle.sin().repeat(1, 2)[:, None]
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def layer(p, i, x, entering):
    w, n = lambda name: p[f"layers.{i}.{name}.weight"], len(x)
    q, k, v = ((entering @ w(f"self_attn.{name}_proj").T).view(n, -1, HEAD_DIM) for name in "qkv")
    q, k = rotate(q), rotate(k)
    k, v = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (k, v))
    attended = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True
    )
    x = x + attended.transpose(0, 1).reshape(n, -1) @ w("self_attn.o_proj").T
    y = norm(x, w("post_attention_layernorm"))
    return x + (torch.nn.functional.silu(y @ w("mlp.gate_proj").T) * (y @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T


def logits(p, tokens, streams):
    """Of rows that stand one behind the other: their tokens' embeddings, and `fc` of their streams."""
    embedding, feature = p["embed_tokens.weight"][tokens], streams @ p["fc.weight"].T
    both = norm(embedding, p["layers.0.input_layernorm.weight"]), norm(feature, p["layers.0.hidden_norm.weight"])
    x = layer(p, 0, feature, torch.cat(both, dim=-1))
    x = layer(p, 1, x, norm(x, p["layers.1.input_layernorm.weight"]))
    return norm(x, p["norm.weight"]) @ p["lm_head.weight"].T


def answers():
    """The loss, the agreement by depth, and the gradient of every weight under `gradient/`, made in float64."""
    p = {name: torch.from_numpy(value).double().requires_grad_() for name, value in state().items()}
    given, drafted = text(), torch.from_numpy(DRAFTED)
    hidden, output = (torch.from_numpy(given[name]).double() for name in ("hidden", "output"))
    streams = torch.cat(list(torch.from_numpy(given["taps"]).double()), dim=-1)
    same, losses = [[] for _ in range(DEPTHS)], [[] for _ in range(DEPTHS)]
    for row, (tokens, answer) in enumerate(zip(given["tokens"], given["answer"], strict=True)):
        for anchor in range(len(tokens) - 2):
            read = [*tokens[1 : anchor + 2].tolist(), *[MASK_TOKEN] * (DEPTHS - 1)]
            masks = p["mask_hidden"].expand(DEPTHS - 1, -1)
            said = logits(p, torch.tensor(read), torch.cat([streams[row, : anchor + 1], masks]))[anchor:]
            for depth in range(DEPTHS):
                guessed = anchor + depth + 2  # this token; from the root on all must be answer
                if guessed >= len(tokens) or not answer[anchor + 1 : guessed + 1].all():
                    continue
                true = hidden[row, guessed - 1] @ output.T
                best = int(true.argmax())
                same[depth].append(best == int(DRAFTED[int(said[depth].argmax())]))
                if best in DRAFTED:
                    losses[depth].append(-(true[drafted].softmax(-1) * said[depth].log_softmax(-1)).sum())
    weights = torch.tensor([DECAY**depth * len(rows) for depth, rows in enumerate(same)], dtype=torch.float64)
    value = (torch.stack([torch.stack(rows).mean() for rows in losses]) * weights).sum() / weights.sum()
    value.backward()
    gradients = {f"gradient/{name}": part.grad.float().numpy() for name, part in p.items()}
    agreement = np.array([np.mean(rows) for rows in same])
    return {"loss": value.detach().numpy(), "agreement": agreement, **gradients}


if __name__ == "__main__":
    np.savez_compressed(GOLDEN, **answers())
    print(f"{GOLDEN}: {GOLDEN.stat().st_size:,} bytes")
