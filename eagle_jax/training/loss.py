"""What a head is trained on: the target's next-token distribution, and for EAGLE-1 its next feature, over several draft
steps.

Slot i of a row holds a feature of token i and the embedding of token i + 1; the head's output there tells token i + 2.
In the first step every feature is made of what the target computed. While drafting, though, the head reads its own
output from the second step on. So the same is asked again with every feature replaced by the previous step's output at
the slot before (EAGLE-3's training-time test, arXiv:2503.01840; harmonized training, arXiv:2408.15766), tokens stay
those of the text, and a query sees what it will see when it drafts:

    step 2, slot i      true features   step 1   step 2
                        .. i-3 i-2      i-1      i

EAGLE-1 was published with one step: SmoothL1 between guessed and true feature plus a tenth of the soft cross-entropy
between the two next-token distributions, with uniform noise on the input features. EAGLE-3 was with seven: the
cross-entropy alone, a step weighing 0.8 times the one before; its outputs are free to be whatever helps the next step.
A head with a draft vocabulary learns the target's distribution among those tokens, from slots where the likeliest of
all is one of them. Means are over the slots that count, not over whole rows as published: the length of the prompts
then does not matter.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.sharding import argmax
from eagle_jax.struct import pytree
from eagle_jax.training.earlier_steps import sight, with_step


@dataclasses.dataclass(frozen=True)
class Objective:
    """Weights of the loss.

    Args:
        steps: draft steps trained; 1 is the published EAGLE-1 training. Medusa and Hydra have a head for each,
            DFlash a slot, P-EAGLE a row.
        decay: weight of each step relative to the one before.
        feature_weight: weight of SmoothL1 between guessed and true feature (published: 1 for EAGLE-1, 0 for EAGLE-3,
            whose normed output it compares).
        distribution_weight: weight of the loss between guessed and true next-token distribution (published: 0.1 for
            EAGLE-1, 1 for EAGLE-3).
        distribution_loss: which loss that is: the cross-entropy, as published, or one of the two LK losses
            (arXiv:2602.23881), which aim at a, the share of its tokens that sampling would accept, the sum of
            min(p, q): "acceptance" is -log a; "hybrid" is w KL + (1 - w) (1 - a) with w = exp(-eta mean a), at first
            the divergence, later acceptance.
        eta: how soon the hybrid turns.
        noise: half-width of the uniform noise on input features made of true ones.
        anchors: blocks of each row (DFlash), or tokens of it behind which mask rows are put (P-EAGLE, whose first step
            learns from every token, as other methods do).
        down_sample_ratio, down_sample_ratio_min: step d, counted from 0, has max(ratio ** d, min) of these (P-EAGLE).
    """

    steps: int = 1
    decay: float = 0.8
    feature_weight: float = 1.0
    distribution_weight: float = 0.1
    noise: float = 0.1
    distribution_loss: Literal["cross_entropy", "acceptance", "hybrid"] = "cross_entropy"
    eta: float = 3.0
    anchors: int = 64
    down_sample_ratio: float = 0.7
    down_sample_ratio_min: float = 0.2

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"objective.steps={self.steps}: at least one draft step must be trained")
        if self.anchors < 1:
            raise ValueError(f"objective.anchors={self.anchors}; expected at least one block of each row")
        if self.decay <= 0:
            raise ValueError(f"objective.decay={self.decay}; expected more than 0, 1 weighs all steps alike")
        for name in ("down_sample_ratio", "down_sample_ratio_min"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"objective.{name}={getattr(self, name)}; expected a share above 0, up to 1")
        for name in ("feature_weight", "distribution_weight", "noise", "eta"):
            if getattr(self, name) < 0:
                raise ValueError(f"objective.{name}={getattr(self, name)}; expected 0 or more")


EAGLE3 = Objective(steps=7, feature_weight=0.0, distribution_weight=1.0, noise=0.0)
"""The published EAGLE-3 training."""

PARALLEL = Objective(steps=5, feature_weight=0.0, distribution_weight=1.0, noise=0.0)
"""Medusa's five heads and the weights of their losses; the distribution is that of the target, as Hydra++ learns it."""

DFLASH = Objective(steps=15, decay=0.867, feature_weight=0.0, distribution_weight=1.0, noise=0.0)

PEAGLE = Objective(steps=8, decay=1.0, feature_weight=0.0, distribution_weight=1.0, noise=0.0, anchors=512)


@pytree
class Report:
    """Per draft step, averaged over the answer tokens that the step can draft.

    Attributes:
        feature: SmoothL1 to the true feature; 0 for heads of another width than the target.
        distribution: the loss on the next-token distribution; soft cross-entropy among the tokens that the head drafts,
            in nats, unless the objective names another.
        agreement: share of slots where head and target have the same most likely token.
    """

    feature: Float[Array, "steps"]
    distribution: Float[Array, "steps"]
    agreement: Float[Array, "steps"]


def loss(
    head: DraftHead,
    target: LM,
    tokens: Int[Array, "b n"],
    answer: Bool[Array, "b n"],
    features: Float[Array, "b n f"],
    key: jax.Array,
    objective: Objective,
    *,
    remat: bool = False,
) -> tuple[Float[Array, ""], Report]:
    """Weighted loss and its parts.

    Args:
        answer: tokens that the target produced; only those are drafted, so only those count.
        features: what the target made of `tokens` (`features.hidden_states`).
        key: seeds the noise.
        remat: for the gradient, keep of each draft step only what the next one reads and compute the rest again.
    """
    embeddings = head.embed(target, tokens[:, 1:])
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    truth = Truth.of(head, target, hidden[:, 1:])
    entering = head.features(hidden[:, :-1], tuple(tap[:, :-1] for tap in taps))
    if objective.noise:
        entering = entering + jax.random.uniform(key, entering.shape, minval=-objective.noise, maxval=objective.noise)

    if objective.feature_weight and head.guess(entering) is None:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a head of another width than its target; expected 0: its "
            "outputs cannot be compared with the target's features"
        )

    batch, slots, _ = embeddings.shape
    positions = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (batch, slots))
    cache = head.empty_cache(batch, 0)
    earlier_kv: tuple = ()
    parts = []

    def draft(step: int, entering: Float[Array, "b n h"], earlier_kv: tuple) -> tuple[Array, tuple, tuple]:
        visible = jnp.broadcast_to(sight(slots, step)[None], (batch, slots, slots))
        out, kv = head.forward(embeddings, entering.astype(head.dtype), positions, visible, cache, earlier_kv)
        guess = out.astype(jnp.float32)
        logits, mask = head.logits(target, guess), drafted(answer, step)
        return out, with_step(earlier_kv, kv), parts_of(head, logits, head.guess(guess), truth, mask, objective)

    for step in range(objective.steps):
        one = functools.partial(draft, step)
        out, earlier_kv, part = (jax.checkpoint(one) if remat else one)(entering, earlier_kv)
        parts.append(part)
        entering = jnp.concatenate([entering[:, :1], out[:, :-1]], axis=1)

    return weighted(parts, objective)


def weighted(
    parts: Sequence[tuple], objective: Objective, counts: Float[Array, "steps"] | None = None
) -> tuple[Float[Array, ""], Report]:
    """The loss out of its parts by draft step, and these.

    Args:
        counts: slots of each step, for all slots to weigh alike; None lets steps weigh alike. Both before `decay`.
    """
    report = Report(*(jnp.stack(column) for column in zip(*parts, strict=True)))
    weight = objective.decay ** jnp.arange(len(parts), dtype=jnp.float32)
    weight = weight if counts is None else weight * jnp.maximum(counts, 1e-6)
    per_step = objective.feature_weight * report.feature + objective.distribution_weight * report.distribution
    return jnp.sum(per_step * weight) / jnp.sum(weight), report


def drafted(answer: Bool[Array, "b n"], step: int) -> Bool[Array, "b m"]:
    """Slots that occur when step `step` drafts, `m = n - 1`: all is answer from the root to the drafted token.

    The root is the token `step` slots earlier whose successor step 0 drafts.
    """
    slots = answer.shape[1] - 1
    padded = jnp.pad(answer, ((0, 0), (step, 1)))  # padded[:, i + step] is answer[:, i]
    mask = jnp.ones_like(answer[:, 1:])
    for offset in range(1 - step, 3):  # tokens i + 1 - step (the root) .. i + 2 (drafted from slot i)
        mask = mask & padded[:, offset + step : offset + step + slots]
    return mask


def smooth_l1(guess: Float[Array, "b n h"], truth: Float[Array, "b n h"]) -> Float[Array, "b n"]:
    """Mean over the features of `d^2 / 2` where `|d| < 1`, `|d| - 1/2` elsewhere."""
    distance = jnp.abs(guess - truth)
    return jnp.mean(jnp.where(distance < 1, 0.5 * distance**2, distance - 0.5), axis=-1)


def distribution_loss(
    logits: Float[Array, "b n d"], truth: "Truth", mask: Bool[Array, "b n"], objective: Objective
) -> Float[Array, ""]:
    """Between the guessed distribution and the true one, as the objective wants it, over the slots that count.

    The target's distribution among the drafted tokens says little where its likeliest token is none of them; what
    sampling would accept is known everywhere.
    """
    counted = mask & truth.drafted
    if objective.distribution_loss == "cross_entropy":
        return mean(soft_cross_entropy(logits, truth.logits), counted)
    shared = overlap(logits, truth)
    if objective.distribution_loss == "acceptance":
        return mean(-jnp.log(jnp.maximum(shared, jnp.finfo(jnp.float32).tiny)), mask)
    divergence = soft_cross_entropy(logits, truth.logits) - soft_cross_entropy(truth.logits, truth.logits)
    weight = jnp.exp(-objective.eta * jax.lax.stop_gradient(mean(shared, mask)))
    return weight * mean(divergence, counted) + (1 - weight) * mean(1 - shared, mask)


def overlap(logits: Float[Array, "b n d"], truth: "Truth") -> Float[Array, "b n"]:
    """The sum of min(p, q) over the drafted tokens: how often a sample of q is accepted, p being the target's."""
    true = jax.nn.softmax(truth.logits, axis=-1) * truth.share[..., None]
    return jnp.sum(jnp.minimum(true, jax.nn.softmax(logits, axis=-1)), axis=-1)


def mean(values: Float[Array, "b n"], mask: Bool[Array, "b n"]) -> Float[Array, ""]:
    """Over the slots in `mask`; 0 if there are none."""
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)


def soft_cross_entropy(logits: Float[Array, "b n v"], true_logits: Float[Array, "b n v"]) -> Float[Array, "b n"]:
    """Cross-entropy of the guessed distribution under the true one, in nats."""
    distribution = jax.nn.softmax(true_logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(distribution * logits, axis=-1)


@pytree
class Truth:
    """What the target makes of every slot.

    Attributes:
        hidden: its final hidden states.
        logits: over the tokens that the head drafts.
        best: its most likely token of all.
        drafted: whether the head drafts that one.
        share: the probability of all tokens that it drafts together.
    """

    hidden: Float[Array, "b n t"]
    logits: Float[Array, "b n d"]
    best: Int[Array, "b n"]
    drafted: Bool[Array, "b n"]
    share: Float[Array, "b n"]

    @staticmethod
    def of(head: AnyHead, target: LM, hidden: Float[Array, "b n t"]) -> "Truth":
        logits = jax.lax.stop_gradient(target.logits(hidden))
        best, among_drafted = argmax(logits), head.drafted_part(logits)
        drafted = head.target_ids(argmax(among_drafted)) == best
        share = jnp.exp(jax.nn.logsumexp(among_drafted, axis=-1) - jax.nn.logsumexp(logits, axis=-1))
        return Truth(hidden=hidden, logits=among_drafted, best=best, drafted=drafted, share=share)


def parts_of(
    head: AnyHead,
    logits: Float[Array, "b n d"],
    guess: Float[Array, "b n t"] | None,
    truth: Truth,
    mask: Bool[Array, "b n"],
    objective: Objective,
) -> tuple[Array, Array, Array]:
    """One draft step's part of each of `Report`'s fields.

    Args:
        logits: over the tokens that the head drafts.
        guess: of the target's hidden states; None if the head makes none.
        mask: slots that count.
    """
    same = (head.target_ids(argmax(logits)) == truth.best).astype(jnp.float32)
    feature = jnp.zeros(()) if guess is None else mean(smooth_l1(guess, truth.hidden), mask)
    return feature, distribution_loss(logits, truth, mask, objective), mean(same, mask)
