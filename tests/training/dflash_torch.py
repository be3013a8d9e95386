"""PyTorch's answers for a case of the losses of DFlash heads: each block by itself, each slot by itself, in float64."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from dflash_cases import BLOCK, EPS, HEAD_DIM, HEADS, KV_HEADS, LAYERS, MASK, TAPS, THETA, Case, state, text
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, silu

Named = Mapping[str, Tensor]


def answers(case: Case) -> dict[str, np.ndarray]:
    """The loss, the agreement by slot, and the gradient of every weight under `gradient/`."""
    params = {name: torch.from_numpy(value).double().requires_grad_() for name, value in state(case).items()}
    given = {name: torch.from_numpy(value) for name, value in text(case).items()}
    given |= {name: value.double() for name, value in given.items() if value.is_floating_point()}
    given["tokens"] = given["tokens"].long()
    blocks = [
        (row, anchor, slots(case, params, given, row, anchor))
        for row, answer in enumerate(given["answer"])
        for anchor in range(len(answer) - 1)
        if answer[anchor] and answer[anchor + 1]
    ]
    value, agreement = loss(case, given, blocks)
    value.backward()
    gradients = {f"gradient/{name}": part.grad.float().numpy() for name, part in params.items()}
    return {"loss": value.detach().numpy(), "agreement": agreement, **gradients}


def slots(case: Case, params: Named, given: Named, row: int, anchor: int) -> Tensor:
    """Logits of the slots that draft, of a block at a token of a row."""
    taps = torch.cat([given["taps"][i, row, :anchor] for i in range(TAPS)], dim=-1)
    context = norm(linear(taps, params["fc.weight"]), params["hidden_norm.weight"])
    x = given["embedding"][[int(given["tokens"][row, anchor])] + [MASK] * (BLOCK - 1)]
    for i in range(LAYERS):
        part = {name: params[f"layers.{i}.{name}.weight"] for name in names(params, f"layers.{i}.")}
        x = x + attention(part, norm(x, part["input_layernorm"]), context, anchor, case.entries["causal"])
        y = norm(x, part["post_attention_layernorm"])
        gated = silu(linear(y, part["mlp.gate_proj"])) * linear(y, part["mlp.up_proj"])
        x = x + linear(gated, part["mlp.down_proj"])
    out = norm(x, params["norm.weight"])[0 if case.entries["anchored"] else 1 :]
    return linear(out, params.get("lm_head.weight", given["output"]))


def names(params: Named, prefix: str) -> list[str]:
    return [name[len(prefix) : -len(".weight")] for name in params if name.startswith(prefix)]


def attention(part: Named, x: Tensor, context: Tensor, anchor: int, causal: bool) -> Tensor:
    rows, positions = torch.cat([context, x]), torch.arange(anchor + len(x))

    def heads(name: str, of: Tensor, count: int) -> Tensor:
        return linear(of, part[f"self_attn.{name}_proj"]).view(len(of), count, HEAD_DIM).transpose(0, 1)

    q = rotated(norm(heads("q", x, HEADS), part["self_attn.q_norm"]), positions[anchor:])
    k = rotated(norm(heads("k", rows, KV_HEADS), part["self_attn.k_norm"]), positions)
    k, v = (part.repeat_interleave(HEADS // KV_HEADS, dim=0) for part in (k, heads("v", rows, KV_HEADS)))
    scores = q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)
    if causal:
        scores = scores.masked_fill(positions[None] > positions[anchor:, None], -math.inf)
    mixed = (scores.softmax(dim=-1) @ v).transpose(0, 1).reshape(len(x), -1)
    return linear(mixed, part["self_attn.o_proj"])


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + EPS) * weight


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    half = HEAD_DIM // 2
    angles = positions[:, None] * THETA ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)


def loss(case: Case, given: Named, blocks: list[tuple[int, int, Tensor]]) -> tuple[Tensor, np.ndarray]:
    """Out of the logits of all blocks, slot by slot; and how often head and target agree."""
    told = case.objective
    drafts = len(blocks[0][2])
    losses: list[list[Tensor]] = [[] for _ in range(drafts)]
    texts: list[list[Tensor]] = [[] for _ in range(drafts)]
    agreements: list[list[bool]] = [[] for _ in range(drafts)]
    paced, counted = torch.zeros(()).double(), 0
    for row, anchor, logits in blocks:
        confidences, on_texts = [], []
        for slot in range(drafts):
            at = anchor + slot + 1
            if at >= given["tokens"].shape[1] or not given["answer"][row, at]:
                break
            aim, said = linear(given["hidden"][row, at - 1], given["output"]), int(given["tokens"][row, at])
            one = on_slot(logits[slot], aim, given["drafted"], told.get("distribution_loss", "cross_entropy"))
            losses[slot] += [] if one is None else [one]
            place = (given["drafted"] == said).nonzero()
            on_text = cross_entropy(logits[slot], place[0, 0]) if len(place) else None
            texts[slot] += [] if on_text is None else [on_text]
            confidences.append(0.0 if on_text is None else math.exp(-on_text.item()))
            on_texts.append(on_text)
            agreements[slot].append(int(given["drafted"][logits[slot].argmax()]) == int(aim.argmax()))
        counted += len(on_texts)
        reached = np.cumprod([0.5 * confidence + 0.5 for confidence in confidences])
        paced = paced + sum(
            float(reached[slot:].sum()) * on_text for slot, on_text in enumerate(on_texts) if on_text is not None
        )
    agreement = np.array([np.mean(each) for each in agreements], np.float32)
    if told.get("position_weights") == "d_pace":
        return told["distribution_weight"] * paced / counted, agreement
    weights = [told["decay"] ** slot for slot in range(drafts)]
    main = losses if told.get("distribution_loss") != "text" else texts
    total = sum(
        weight
        * (
            told["distribution_weight"] * torch.stack(main[slot]).mean()
            + told.get("text_weight", 0.0) * torch.stack(texts[slot]).mean()
        )
        for slot, weight in enumerate(weights)
    )
    return total / sum(weights), agreement


def on_slot(logits: Tensor, aim: Tensor, drafted: Tensor, kind: str) -> Tensor | None:
    """Between the head's distribution and the target's; None where a slot does not count."""
    if kind == "tv":
        q = torch.zeros_like(aim).index_copy(0, drafted, logits.softmax(dim=-1))
        return 0.5 * (aim.softmax(dim=-1) - q).abs().sum()
    if int(aim.argmax()) not in drafted.tolist():
        return None
    return -(aim[drafted].softmax(dim=-1) * logits.log_softmax(dim=-1)).sum()
