"""Parts of the losses of all methods: labels from target and text, and losses per draft step."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.sharding import argmax
from eagle_jax.struct import pytree
from eagle_jax.training.objective import Objective

SMOOTHING = 0.5  # of D-PACE's probabilities, as published


Parts = dict[str, Array]  # values of one draft step, by field of `LossReport`


@pytree
class LossReport:
    """Per draft step, averaged over the answer tokens that the step can draft.

    Attributes:
        feature: SmoothL1 to the true feature; 0 for heads of another width than the target.
        distribution: loss of the next-token distribution; by default soft cross-entropy over the draft vocabulary, in
            nats.
        agreement: share of slots where head and target have the same most likely token.
        text: cross-entropy of the text's next token over the draft vocabulary, in nats; None without `text_weight`.
        confidence: loss of the confidence head, in nats; None without one.
        selector: loss of the selector, in nats; None without one.
        candidates: share of slots where the text's token is among the selector's candidates.
    """

    feature: Float[Array, "steps"]
    distribution: Float[Array, "steps"]
    agreement: Float[Array, "steps"]
    text: Float[Array, "steps"] | None = None
    confidence: Float[Array, "steps"] | None = None
    selector: Float[Array, "steps"] | None = None
    candidates: Float[Array, "steps"] | None = None


def weighted_loss(
    parts: Sequence[Parts], objective: Objective, counts: Float[Array, "steps"] | None = None
) -> tuple[Float[Array, ""], LossReport]:
    """Returns the weighted loss, in which each draft step has `objective.decay` times the weight of the previous one,
    and the report.

    Args:
        counts: number of slots of each step, if slots instead of steps shall have equal weights (before `decay`).
    """
    if objective.position_weights != "decay":
        raise ValueError(
            f"objective.position_weights={objective.position_weights} for a head that drafts step by step; expected "
            "decay, or head.method dflash"
        )
    report = stack_parts(parts)
    weight = objective.decay ** jnp.arange(len(parts), dtype=jnp.float32)
    weight = weight if counts is None else weight * jnp.maximum(counts, 1e-6)
    per_step = objective.feature_weight * report.feature + objective.distribution_weight * report.distribution
    for name in ("text", "confidence", "selector"):
        if getattr(report, name) is not None:
            per_step = per_step + getattr(objective, f"{name}_weight") * getattr(report, name)
    return jnp.sum(per_step * weight) / jnp.sum(weight), report


def add_noise(values: Array, key: jax.Array, width: float) -> Array:
    """Adds uniform noise from -width to width."""
    return values + jax.random.uniform(key, values.shape, minval=-width, maxval=width) if width else values


def stack_parts(parts: Sequence[Parts]) -> LossReport:
    """Stacks the parts of draft steps to a report."""
    return LossReport(**{name: jnp.stack([part[name] for part in parts]) for name in parts[0]})


def smooth_l1(guess: Float[Array, "b n h"], labels: Float[Array, "b n h"]) -> Float[Array, "b n"]:
    """Computes the mean over the features of `d^2 / 2` where `|d| < 1`, `|d| - 1/2` elsewhere."""
    distance = jnp.abs(guess - labels)
    return jnp.mean(jnp.where(distance < 1, 0.5 * distance**2, distance - 0.5), axis=-1)


def distribution_loss(
    logits: Float[Array, "b n d"], labels: "Labels", mask: Bool[Array, "b n"], objective: Objective
) -> Float[Array, ""]:
    """Computes the loss of the predicted distribution that the objective names, as a mean over `mask`.

    Cross-entropies skip slots whose most likely token is not in the draft vocabulary; acceptance counts everywhere.
    """
    counted = mask & labels.drafted
    if objective.distribution_loss == "cross_entropy":
        return mean(soft_cross_entropy(logits, labels.logits), counted)
    if objective.distribution_loss == "text":
        return mean(text_cross_entropy(logits, labels.following), mask & (labels.following >= 0))
    shared = overlap(logits, labels)
    if objective.distribution_loss == "tv":
        return mean(1 - shared, mask)
    if objective.distribution_loss == "acceptance":
        return mean(-jnp.log(jnp.maximum(shared, jnp.finfo(jnp.float32).tiny)), mask)
    divergence = soft_cross_entropy(logits, labels.logits) - soft_cross_entropy(labels.logits, labels.logits)
    weight = jnp.exp(-objective.eta * jax.lax.stop_gradient(mean(shared, mask)))
    return weight * mean(divergence, counted) + (1 - weight) * mean(1 - shared, mask)


def overlap(logits: Float[Array, "*slots d"], labels: "Labels") -> Float[Array, "*slots"]:
    """Returns the sum of min(p, q) over the draft vocabulary: the acceptance rate of samples of q under target p."""
    true = jax.nn.softmax(labels.logits, axis=-1) * labels.share[..., None]
    return jnp.sum(jnp.minimum(true, jax.nn.softmax(logits, axis=-1)), axis=-1)


def mean(values: Float[Array, "*slots"], mask: Bool[Array, "*slots"]) -> Float[Array, ""]:
    """Averages over the slots in `mask`; 0 if there are none."""
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)


def soft_cross_entropy(logits: Float[Array, "b n v"], true_logits: Float[Array, "b n v"]) -> Float[Array, "b n"]:
    """Computes the cross-entropy of the predicted distribution under the true one, in nats."""
    distribution = jax.nn.softmax(true_logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(distribution * logits, axis=-1)


def text_cross_entropy(logits: Float[Array, "*rows d"], following: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Computes the cross-entropy of the next token, in nats; meaningless where it is -1."""
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    true_logits = jnp.where(ids == following[..., None], logits, 0.0)  # a gather would not work on a sharded vocabulary
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(true_logits, axis=-1)


def d_pace_weights(
    cross_entropy: Float[Array, "*blocks p"], mask: Bool[Array, "*blocks p"]
) -> Float[Array, "*blocks p"]:
    """Returns the weight of each position of a block (D-PACE, arXiv:2605.18810), without gradient.

    With s the smoothed probability of the text's token, it is the sum, over this and all later positions, of the
    product of s up to there: the derivative of a smoothed expected accepted length by log s.

    Args:
        cross_entropy: cross-entropy of the text's token at each position; inf if it is not in the draft vocabulary.
        mask: positions that count; others are skipped.
    """
    smoothed = jnp.where(mask, (1 - SMOOTHING) * jnp.exp(-cross_entropy) + SMOOTHING, 1.0)
    reached = jnp.where(mask, jnp.cumprod(smoothed, axis=-1), 0.0)
    return jax.lax.stop_gradient(jnp.where(mask, jnp.cumsum(reached[..., ::-1], axis=-1)[..., ::-1], 0.0))


@pytree
class Labels:
    """The target's outputs and the text's next token at every slot.

    Attributes:
        hidden: the target's final hidden states.
        logits: the target's logits over the draft vocabulary.
        best: the target's most likely token (target id).
        drafted: whether that token is in the draft vocabulary.
        share: the target's probability of the draft vocabulary.
        following: the text's next token (draft id); -1 if it is not in the draft vocabulary, or there is none.
    """

    hidden: Float[Array, "b n t"]
    logits: Float[Array, "b n d"]
    best: Int[Array, "b n"]
    drafted: Bool[Array, "b n"]
    share: Float[Array, "b n"]
    following: Int[Array, "b n"]

    @staticmethod
    def of(head: AnyHead, target: LM, hidden: Float[Array, "b n t"], following: Int[Array, "b n"]) -> "Labels":
        """Computes the labels from the target's hidden states and the text's next tokens (target ids or -1)."""
        logits = jax.lax.stop_gradient(target.logits(hidden))
        best, among_drafted = argmax(logits), head.drafted_part(logits)
        drafted = head.target_ids(argmax(among_drafted)) == best
        share = jnp.exp(jax.nn.logsumexp(among_drafted, axis=-1) - jax.nn.logsumexp(logits, axis=-1))
        ids = following if head.vocabulary is None else _draft_ids(head.vocabulary, logits.shape[-1], following)
        return Labels(hidden=hidden, logits=among_drafted, best=best, drafted=drafted, share=share, following=ids)


def next_tokens(tokens: Int[Array, "b n"]) -> Int[Array, "b n"]:
    """Returns the token after each token; -1 after the last."""
    return jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)


def _draft_ids(vocabulary: Int[Array, "d"], size: int, tokens: Int[Array, "b n"]) -> Int[Array, "b n"]:
    """Maps target ids below `size` to draft ids; -1, and tokens outside the draft vocabulary, to -1."""
    ids = jnp.full(size, -1, jnp.int32).at[vocabulary].set(jnp.arange(len(vocabulary), dtype=jnp.int32))
    return jnp.where(tokens < 0, -1, jnp.take(ids, jnp.maximum(tokens, 0), axis=0))


def step_parts(
    head: AnyHead,
    logits: Float[Array, "b n d"],
    guess: Float[Array, "b n t"] | None,
    labels: Labels,
    mask: Bool[Array, "b n"],
    objective: Objective,
) -> Parts:
    """Returns the fields of `LossReport` for one draft step.

    Args:
        logits: the head's logits over the draft vocabulary.
        guess: predicted hidden states of the target; None if the head predicts none.
        mask: slots that count.
    """
    same = (head.target_ids(argmax(logits)) == labels.best).astype(jnp.float32)
    feature = jnp.zeros(()) if guess is None else mean(smooth_l1(guess, labels.hidden), mask)
    parts = {
        "feature": feature,
        "distribution": distribution_loss(logits, labels, mask, objective),
        "agreement": mean(same, mask),
    }
    if objective.text_weight:
        parts["text"] = mean(text_cross_entropy(logits, labels.following), mask & (labels.following >= 0))
    return parts
