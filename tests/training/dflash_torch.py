"""PyTorch's answers for a case of the losses of DFlash heads: each block by itself, each slot by itself, in float64."""

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from dflash_cases import (
    BLOCK,
    CANDIDATES,
    EPS,
    GROUP,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    MASK,
    RANK,
    TAPS,
    THETA,
    state,
    text,
)
from loss_parity import Case
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, linear, silu

Named = Mapping[str, Tensor]


def answers(case: Case) -> dict[str, np.ndarray]:
    """The loss, the agreement by slot, and the gradient of every weight under `gradient/`."""
    params = {name: torch.from_numpy(value).double().requires_grad_() for name, value in state(case).items()}
    given = {name: torch.from_numpy(value) for name, value in text(case).items()}
    given |= {name: value.double() for name, value in given.items() if value.is_floating_point()}
    given["tokens"] = given["tokens"].long()
    blocks = [
        (row, anchor, *slots(case, params, given, row, anchor))
        for row, answer in enumerate(given["answer"])
        for anchor in range(len(answer) - 1)
        if answer[anchor] and answer[anchor + 1]
    ]
    value, agreement = loss(case, params, given, blocks)
    value.backward()
    gradients = {f"gradient/{name}": part.grad.float().numpy() for name, part in params.items()}
    return {"loss": value.detach().numpy(), "agreement": agreement, **gradients}


def slots(case: Case, params: Named, given: Named, row: int, anchor: int) -> tuple[Tensor, Tensor]:
    """Outputs and logits of the slots that draft, of a block at a token of a row."""
    taps = torch.cat([given["taps"][i, row, :anchor] for i in range(TAPS)], dim=-1)
    context = norm(linear(taps, params["fc.weight"]), params["hidden_norm.weight"])
    x = given["embedding"][[int(given["tokens"][row, anchor])] + [MASK] * (BLOCK - 1)]
    for i in range(LAYERS):
        part = {name: params[f"layers.{i}.{name}.weight"] for name in names(params, f"layers.{i}.")}
        before, behind = convolutions(params, f"layers.{i}.attention_conv", y := norm(x, part["input_layernorm"]))
        x = x + behind(attention(part, before(y), context, anchor, case.entries["causal"]))
        before, behind = convolutions(params, f"layers.{i}.mlp_conv", y := norm(x, part["post_attention_layernorm"]))
        y = before(y)
        gated = silu(linear(y, part["mlp.gate_proj"])) * linear(y, part["mlp.up_proj"])
        x = x + behind(linear(gated, part["mlp.down_proj"]))
    out = norm(x, params["norm.weight"])[0 if case.entries["anchored"] else 1 :]
    return out, linear(out, params.get("lm_head.weight", given["output"]))


def names(params: Named, prefix: str) -> list[str]:
    return [name[len(prefix) : -len(".weight")] for name in params if name.startswith(prefix) and "weight" in name]


def convolutions(params: Named, name: str, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """What is applied before and behind a sublayer that reads `x`: nothing where there are none."""
    if f"{name}.base_kernel" not in params:
        return (lambda y: y), (lambda y: y)
    made = linear(x, params[f"{name}.kernel_projection.weight"]).view(len(x), 2, 2, -1)

    def applied(side: int, y: Tensor) -> Tensor:
        rows = []
        for t in range(len(y)):
            row = torch.zeros_like(y[t])
            for back in range(min(t, 1) + 1):
                kernel = params[f"{name}.base_kernel"][side, back] + made[t, side, back].repeat_interleave(GROUP)
                row = row + kernel * y[t - back]
            rows.append(row)
        return torch.stack(rows)

    return functools.partial(applied, 0), functools.partial(applied, 1)


def with_markov(
    case: Case, params: Named, out: Tensor, logits: Tensor, previous: int, state: Tensor
) -> tuple[Tensor, Tensor]:
    """A slot's logits behind a token, and what is remembered of the path."""
    kind = case.entries["markov"]
    if kind is None:
        return logits, state
    code = params["markov_head.markov_w1.weight"][previous]
    if kind == "gated":
        joint = torch.cat([out, code])
        read = (
            code * linear(joint, params["markov_head.gate_proj.weight"], params["markov_head.gate_proj.bias"]).sigmoid()
        )
    elif kind == "rnn":
        joint = torch.cat([state, code, out])
        joint = linear(joint, params["markov_head.joint_proj.weight"], params["markov_head.joint_proj.bias"])
        gate, new, read = joint[:RANK].sigmoid(), joint[RANK : 2 * RANK].tanh(), joint[2 * RANK :].tanh()
        state = gate * state + (1 - gate) * new
    else:
        read = code
    return logits + linear(read, params["markov_head.markov_w2.weight"]), state


def of_confidence(params: Named, out: Tensor, previous: int, accepted: Tensor) -> Tensor:
    read = torch.cat([out, params["markov_head.markov_w1.weight"][previous]])
    logit = linear(read, params["confidence_head.proj.weight"], params["confidence_head.proj.bias"])[0]
    return binary_cross_entropy_with_logits(logit, accepted.detach())


def of_selector(params: Named, out: Tensor, logits: Tensor, previous: int, said: int) -> Tensor:
    """Of the text's token among a slot's candidates, the last of which gives way to it."""
    best = logits.topk(CANDIDATES).indices.tolist()
    best = best if said in best else [*best[:-1], said]
    return -pair_scores(params, out, logits, previous, best).log_softmax(dim=-1)[best.index(said)]


def chosen(params: Named, out: Tensor, logits: Tensor, previous: int) -> int:
    """The candidate that the selector prefers."""
    best = logits.topk(CANDIDATES).indices.tolist()
    return best[int(pair_scores(params, out, logits, previous, best).argmax())]


def pair_scores(params: Named, out: Tensor, logits: Tensor, previous: int, candidates: list[int]) -> Tensor:
    code = params["candidate_selector.predecessor_codebook"][previous] * linear(
        out, params["candidate_selector.hidden_projection.weight"]
    )
    return logits[candidates] + params["candidate_selector.successor_codebook"][candidates] @ code


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


def loss(
    case: Case, params: Named, given: Named, blocks: list[tuple[int, int, Tensor, Tensor]]
) -> tuple[Tensor, np.ndarray]:
    """Out of the outputs and logits of all blocks, slot by slot; and how often head and target agree."""
    told = case.objective
    drafts, paced_slots = len(blocks[0][2]), 0
    kinds = ("main", "text", "confidence", "selector", "agreement")
    found: dict[str, list[list[Tensor]]] = {kind: [[] for _ in range(drafts)] for kind in kinds}
    paced = {"text": torch.zeros(()).double(), "selector": torch.zeros(()).double()}
    for row, anchor, outputs, unary in blocks:
        path, by_slot = torch.zeros(RANK).double(), []
        for slot in range(drafts):
            at = anchor + slot + 1
            if at >= given["tokens"].shape[1] or not given["answer"][row, at]:
                break
            previous, said = (int(given["tokens"][row, place]) for place in (at - 1, at))
            logits, path = with_markov(case, params, outputs[slot], unary[slot], previous, path)
            aim = linear(given["hidden"][row, at - 1], given["output"])
            place = (given["drafted"] == said).nonzero()
            losses = {"main": on_slot(logits, aim, given["drafted"], told.get("distribution_loss", "cross_entropy"))}
            if len(place):
                losses["text"] = cross_entropy(logits, place[0, 0])
            if case.entries["confidence"]:
                accepted = 1 - on_slot(logits, aim, given["drafted"], "tv")
                losses["confidence"] = of_confidence(params, outputs[slot], previous, accepted)
            if case.entries["selector"] and len(place):
                losses["selector"] = of_selector(params, outputs[slot], unary[slot], previous, int(place[0, 0]))
            best = chosen(params, outputs[slot], logits, previous) if case.entries["selector"] else int(logits.argmax())
            losses["agreement"] = (given["drafted"][best] == aim.argmax()).double()
            for kind, value in losses.items():
                found[kind][slot] += [] if value is None else [value]
            by_slot.append(losses)
        paced_slots += len(by_slot)
        paced = {kind: total + by_pace([losses.get(kind) for losses in by_slot]) for kind, total in paced.items()}
    agreement = np.array([float(torch.stack(each).mean()) for each in found["agreement"]], np.float32)
    weights = {
        "text" if told.get("distribution_loss") == "text" else "main": told["distribution_weight"],
        **({"text": told["text_weight"]} if told.get("text_weight") else {}),
        **({"confidence": told.get("confidence_weight", 1.0)} if case.entries["confidence"] else {}),
        **({"selector": told.get("selector_weight", 1.0)} if case.entries["selector"] else {}),
    }
    if told.get("position_weights") == "d_pace":
        return sum(weight * paced[kind] for kind, weight in weights.items()) / paced_slots, agreement
    decays = [told["decay"] ** slot for slot in range(drafts)]
    total = sum(
        decay * weight * torch.stack(found[kind][slot]).mean()
        for slot, decay in enumerate(decays)
        for kind, weight in weights.items()
    )
    return total / sum(decays), agreement


def by_pace(losses: list[Tensor | None]) -> Tensor:
    """A block's cross-entropies with D-PACE's weights; None is a token that is not drafted."""
    reached = np.cumprod([0.5 if one is None else 0.5 * math.exp(-one.item()) + 0.5 for one in losses])
    return sum(
        (float(reached[slot:].sum()) * one for slot, one in enumerate(losses) if one is not None),
        start=torch.zeros(()).double(),
    )


def on_slot(logits: Tensor, aim: Tensor, drafted: Tensor, kind: str) -> Tensor | None:
    """Between the head's distribution and the target's; None where a slot does not count."""
    if kind == "tv":
        q = torch.zeros_like(aim).index_copy(0, drafted, logits.softmax(dim=-1))
        return 0.5 * (aim.softmax(dim=-1) - q).abs().sum()
    if int(aim.argmax()) not in drafted.tolist():
        return None
    return -(aim[drafted].softmax(dim=-1) * logits.log_softmax(dim=-1)).sum()
