"""A head's loss and update in eager PyTorch, written from the published trainings alone.

Features stay where they are and tokens move: index i holds the target's feature of token i, and draft step k adds to it
the embedding of token i + 1 + k, stands at position i + k, and tells token i + 2 + k. From step 1 on the feature is
what the step before put out at the same index. A query sees the keys of step 0 up to its own index, and of every later
step the one at its own index (SafeAILab/EAGLE, traineagle3; arXiv:2408.15766 for EAGLE-1 heads).
"""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, silu, smooth_l1_loss

Params = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the head's attention, and what else no tensor says."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    norm_output: bool = False


@dataclasses.dataclass(frozen=True)
class Text:
    """Rows of text, and what the target knows of them.

    Attributes:
        tokens: ids `[b, n]`.
        answer: which of them the assistant produced.
        hidden: the target's final hidden states `[b, n, t]`.
        taps: the residual streams that an EAGLE-3 head reads; none for EAGLE-1.
        embedding, output: the target's matrices `[v, t]`.
        drafted: ids of the draft vocabulary; None is all.
    """

    tokens: Tensor
    answer: Tensor
    hidden: Tensor
    taps: tuple[Tensor, ...]
    embedding: Tensor
    output: Tensor
    drafted: Tensor | None = None


def loss(
    params: Params,
    sizes: Sizes,
    text: Text,
    *,
    steps: int,
    decay: float,
    feature_weight: float,
    distribution_weight: float,
    distribution_loss: str = "cross_entropy",
    eta: float = 3.0,
    text_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss without noise, and the agreement by draft step `[steps]`."""
    n = text.tokens.shape[1]
    true_logits = linear(text.hidden, text.output)
    feature = first_features(params, sizes, text)[:, : n - 1]
    before: list[tuple[Tensor, Tensor]] = []
    total, weights, agreements = torch.zeros(()), 0.0, []
    for step in range(steps):
        embedded = moved(text.embedding[text.tokens[:, 1:]], step)
        out, kv = layer(params, sizes, embedded, feature, step, before)
        before.append(kv)
        aim = moved(true_logits[:, 1:], step)
        counts = torch.zeros(text.tokens.shape[0], n - 1, dtype=torch.bool)
        counts[:, : n - 2 - step] = text.answer[:, 1:].unfold(1, step + 2, 1).all(dim=-1)
        logits = draft_logits(params, sizes, out, text)
        said = moved(text.tokens[:, 1:, None], step + 1)[..., 0]
        on_text = _on_text(logits, said, counts, text.drafted)
        if distribution_loss == "text":
            part = distribution_weight * on_text
        else:
            part = distribution_weight * _on_distributions(logits, aim, counts, text.drafted, distribution_loss, eta)
        if text_weight:
            part = part + text_weight * on_text
        if feature_weight:
            guess = normed(params, sizes, out) if "norm.weight" in params else out
            apart = smooth_l1_loss(guess, moved(text.hidden[:, 1:], step), reduction="none").mean(dim=-1)
            part = part + feature_weight * apart[counts].mean()
        total, weights = total + decay**step * part, weights + decay**step
        best = logits.argmax(dim=-1)
        best = best if text.drafted is None else text.drafted[best]
        agreements.append((best == aim.argmax(dim=-1))[counts].float().mean())
        feature = out
    return total / weights, torch.stack(agreements).detach()


def _on_distributions(
    logits: Tensor, aim: Tensor, counts: Tensor, drafted: Tensor | None, kind: str, eta: float
) -> Tensor:
    """Between the head's distribution and the target's: cross-entropy, or an LK loss (arXiv:2602.23881)."""
    ours = logits.log_softmax(dim=-1)
    known = aim if drafted is None else aim[..., drafted]
    theirs = known.log_softmax(dim=-1)
    held = counts if drafted is None else counts & torch.isin(aim.argmax(dim=-1), drafted)
    cross = -(theirs.exp() * ours).sum(dim=-1)
    if kind == "cross_entropy":
        return cross[held].mean()
    whole = aim.softmax(dim=-1)
    whole = whole if drafted is None else whole[..., drafted]
    alpha = torch.minimum(whole, ours.exp()).sum(dim=-1)
    if kind == "tv":  # half of the L1 distance over the whole vocabulary, of which the head drafts a part
        apart = (aim.softmax(dim=-1)[counts] - _over_all(ours.exp()[counts], aim.shape[-1], drafted)).abs()
        return 0.5 * apart.sum(dim=-1).mean()
    if kind == "acceptance":
        return -alpha.log()[counts].mean()
    divergence = (cross + (theirs.exp() * theirs).sum(dim=-1))[held].mean()
    share = math.exp(-eta * float(alpha[counts].detach().mean()))
    return share * divergence + (1 - share) * (1 - alpha[counts]).mean()


def _over_all(q: Tensor, size: int, drafted: Tensor | None) -> Tensor:
    """Probabilities of drafted tokens as those of all."""
    return q if drafted is None else q.new_zeros(len(q), size).index_copy(1, drafted, q)


def _on_text(logits: Tensor, said: Tensor, counts: Tensor, drafted: Tensor | None) -> Tensor:
    """Cross-entropy of the text's own tokens, where the head drafts them."""
    if drafted is not None:
        counts = counts & torch.isin(said, drafted)
        said = torch.searchsorted(drafted, said).clamp(max=len(drafted) - 1)
    return cross_entropy(logits[counts], said[counts])


def first_features(params: Params, sizes: Sizes, text: Text) -> Tensor:
    """What step 0 reads."""
    if not text.taps:
        return text.hidden
    taps = text.taps
    if "fc_norm.0.weight" in params:
        taps = tuple(norm(tap, params[f"fc_norm.{i}.weight"], sizes) for i, tap in enumerate(taps))
    return linear(torch.cat(taps, dim=-1), params["fc.weight"])


def layer(
    params: Params, sizes: Sizes, embedded: Tensor, feature: Tensor, step: int, before: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One pass of the head's decoder layer over all indices: what it puts out, its keys and its values."""
    if "midlayer.hidden_norm.weight" in params:  # EAGLE-3
        name, x = "midlayer", feature
        entering = torch.cat(
            [
                norm(embedded, params[f"{name}.input_layernorm.weight"], sizes),
                norm(feature, params[f"{name}.hidden_norm.weight"], sizes),
            ],
            dim=-1,
        )
    else:
        name = "layers.0"
        x = entering = linear(torch.cat([embedded, feature], dim=-1), params["fc.weight"], params.get("fc.bias"))
    projections = {key: params[f"{name}.self_attn.{key}_proj.weight"] for key in "qkvo"}
    mixed, kv = attention(projections, sizes, entering, step, before)
    x = x + mixed
    y = norm(x, params[f"{name}.post_attention_layernorm.weight"], sizes)
    gate, up, down = (params[f"{name}.mlp.{key}_proj.weight"] for key in ("gate", "up", "down"))
    x = x + linear(silu(linear(y, gate)) * linear(y, up), down)
    return norm(x, params["norm.weight"], sizes) if sizes.norm_output else x, kv


def attention(
    weights: Params, sizes: Sizes, x: Tensor, step: int, before: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    batch, n, _ = x.shape

    def heads(name: str, count: int) -> Tensor:
        return linear(x, weights[name]).view(batch, n, count, sizes.head_dim).transpose(1, 2)

    group = sizes.heads // sizes.kv_heads
    q = rotated(heads("q", sizes.heads), sizes, step)
    k = rotated(heads("k", sizes.kv_heads), sizes, step).repeat_interleave(group, dim=1)
    v = heads("v", sizes.kv_heads).repeat_interleave(group, dim=1)
    rows = [*before, (k, v)]
    scores = q @ rows[0][0].transpose(2, 3)
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
    own = [(q * key).sum(dim=-1, keepdim=True) for key, _ in rows[1:]]
    distribution = (torch.cat([scores, *own], dim=-1) / math.sqrt(sizes.head_dim)).softmax(dim=-1)
    mixed = distribution[..., :n] @ rows[0][1]
    for at, (_, value) in enumerate(rows[1:]):
        mixed = mixed + distribution[..., n + at : n + at + 1] * value
    return linear(mixed.transpose(1, 2).reshape(batch, n, -1), weights["o"]), (k, v)


def draft_logits(params: Params, sizes: Sizes, out: Tensor, text: Text) -> Tensor:
    if "lm_head.weight" not in params:
        return linear(out, text.output)
    return linear(normed(params, sizes, out) if "norm.weight" in params else out, params["lm_head.weight"])


def normed(params: Params, sizes: Sizes, out: Tensor) -> Tensor:
    return out if sizes.norm_output else norm(out, params["norm.weight"], sizes)


def norm(x: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + sizes.eps) * weight


def rotated(x: Tensor, sizes: Sizes, step: int) -> Tensor:
    """Turns the pair (x_j, x_{j + size/2}) at index i by the angle (i + step) / theta^(2j / size)."""
    half = sizes.head_dim // 2
    speeds = sizes.theta ** (-torch.arange(half) / half)
    angles = (torch.arange(x.shape[2]) + step)[:, None] * speeds
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def moved(x: Tensor, step: int) -> Tensor:
    """Everything `step` places to the left, zeros behind it."""
    return torch.cat([x[:, step:], torch.zeros_like(x[:, :step])], dim=1)
