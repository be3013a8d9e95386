"""The parts of the losses of all methods: what the target says at a slot, and how far a guess is from it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.sharding import argmax
from eagle_jax.struct import pytree
from eagle_jax.training.objective import Objective

SMOOTHING = 0.5  # of the probabilities that D-PACE multiplies, as published


Parts = dict[str, Array]  # numbers of one draft step, by their names in `Report`


@pytree
class Report:
    """Per draft step, averaged over the answer tokens that the step can draft.

    Attributes:
        feature: SmoothL1 to the true feature; 0 for heads of another width than the target.
        distribution: the loss on the next-token distribution; soft cross-entropy among the tokens that the head drafts,
            in nats, unless the objective names another.
        agreement: share of slots where head and target have the same most likely token.
        text: cross-entropy of the text's own next token, in nats, among the tokens that the head drafts; None unless
            the objective weighs it.
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


def weighted(
    parts: Sequence[Parts], objective: Objective, counts: Float[Array, "steps"] | None = None
) -> tuple[Float[Array, ""], Report]:
    """Returns the weighted loss, each draft step weighing `objective.decay` times the one before, and the report.

    Args:
        counts: slots of each step: all slots then have the same weight, before `decay`; None gives steps the same.
    """
    if objective.position_weights != "decay":
        raise ValueError(
            f"objective.position_weights={objective.position_weights} for a head that drafts step by step; expected "
            "decay, or head.method dflash"
        )
    report = stacked(parts)
    weight = objective.decay ** jnp.arange(len(parts), dtype=jnp.float32)
    weight = weight if counts is None else weight * jnp.maximum(counts, 1e-6)
    per_step = objective.feature_weight * report.feature + objective.distribution_weight * report.distribution
    for name in ("text", "confidence", "selector"):
        if getattr(report, name) is not None:
            per_step = per_step + getattr(objective, f"{name}_weight") * getattr(report, name)
    return jnp.sum(per_step * weight) / jnp.sum(weight), report


def noisy(values: Array, key: jax.Array, width: float) -> Array:
    """Adds uniform noise from -width to width; none for a width of 0."""
    return values + jax.random.uniform(key, values.shape, minval=-width, maxval=width) if width else values


def stacked(parts: Sequence[Parts]) -> Report:
    """Returns the report of parts by draft step."""
    return Report(**{name: jnp.stack([part[name] for part in parts]) for name in parts[0]})


def smooth_l1(guess: Float[Array, "b n h"], truth: Float[Array, "b n h"]) -> Float[Array, "b n"]:
    """Computes the mean over the features of `d^2 / 2` where `|d| < 1`, `|d| - 1/2` elsewhere."""
    distance = jnp.abs(guess - truth)
    return jnp.mean(jnp.where(distance < 1, 0.5 * distance**2, distance - 0.5), axis=-1)


def distribution_loss(
    logits: Float[Array, "b n d"], truth: "Truth", mask: Bool[Array, "b n"], objective: Objective
) -> Float[Array, ""]:
    """Computes the loss between the guessed distribution and the true one, by the objective, over the slots that count.

    The target's distribution among the drafted tokens says little where its likeliest token is not drafted; what
    sampling would accept is known everywhere.
    """
    counted = mask & truth.drafted
    if objective.distribution_loss == "cross_entropy":
        return mean(soft_cross_entropy(logits, truth.logits), counted)
    if objective.distribution_loss == "text":
        return mean(text_cross_entropy(logits, truth.following), mask & (truth.following >= 0))
    shared = overlap(logits, truth)
    if objective.distribution_loss == "tv":
        return mean(1 - shared, mask)
    if objective.distribution_loss == "acceptance":
        return mean(-jnp.log(jnp.maximum(shared, jnp.finfo(jnp.float32).tiny)), mask)
    divergence = soft_cross_entropy(logits, truth.logits) - soft_cross_entropy(truth.logits, truth.logits)
    weight = jnp.exp(-objective.eta * jax.lax.stop_gradient(mean(shared, mask)))
    return weight * mean(divergence, counted) + (1 - weight) * mean(1 - shared, mask)


def overlap(logits: Float[Array, "*slots d"], truth: "Truth") -> Float[Array, "*slots"]:
    """Returns the sum of min(p, q) over the drafted tokens: how often a sample of q is accepted by the target's p."""
    true = jax.nn.softmax(truth.logits, axis=-1) * truth.share[..., None]
    return jnp.sum(jnp.minimum(true, jax.nn.softmax(logits, axis=-1)), axis=-1)


def mean(values: Float[Array, "*slots"], mask: Bool[Array, "*slots"]) -> Float[Array, ""]:
    """Averages over the slots in `mask`; 0 if there are none."""
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)


def soft_cross_entropy(logits: Float[Array, "b n v"], true_logits: Float[Array, "b n v"]) -> Float[Array, "b n"]:
    """Computes the cross-entropy of the guessed distribution under the true one, in nats."""
    distribution = jax.nn.softmax(true_logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(distribution * logits, axis=-1)


def text_cross_entropy(logits: Float[Array, "*rows d"], following: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Computes the cross-entropy of the next token, in nats; meaningless where the head does not draft it (-1)."""
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    true_logits = jnp.where(ids == following[..., None], logits, 0.0)  # and a sum, since the vocabulary may be sharded
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(true_logits, axis=-1)


def d_pace_weights(
    cross_entropy: Float[Array, "*blocks p"], mask: Bool[Array, "*blocks p"]
) -> Float[Array, "*blocks p"]:
    """Returns the weight of each slot of a block (D-PACE, arXiv:2605.18810): with s, the head's probability of the
    text's token drawn half-way to 1, the sum over this slot and those after it of the product of s up to there.

    That is the derivative of the expected accepted length, a smoothed one, by the logarithm of the slot's s: what
    raises it counts, at slots that are reached and from which much is to be gained. No gradient goes through it.

    Args:
        cross_entropy: cross-entropy of the text's token at each slot; infinite where the head does not draft it.
        mask: slots that count. Others are skipped.
    """
    smoothed = jnp.where(mask, (1 - SMOOTHING) * jnp.exp(-cross_entropy) + SMOOTHING, 1.0)
    reached = jnp.where(mask, jnp.cumprod(smoothed, axis=-1), 0.0)
    return jax.lax.stop_gradient(jnp.where(mask, jnp.cumsum(reached[..., ::-1], axis=-1)[..., ::-1], 0.0))


@pytree
class Truth:
    """What the target makes of every slot, and what the text says there.

    Attributes:
        hidden: its final hidden states.
        logits: over the tokens that the head drafts.
        best: its most likely token of all.
        drafted: whether the head drafts that one.
        share: the probability of all tokens that it drafts together.
        following: the text's own next token, as the head numbers it; -1 where it does not draft that one, or there is
            none.
    """

    hidden: Float[Array, "b n t"]
    logits: Float[Array, "b n d"]
    best: Int[Array, "b n"]
    drafted: Bool[Array, "b n"]
    share: Float[Array, "b n"]
    following: Int[Array, "b n"]

    @staticmethod
    def of(head: AnyHead, target: LM, hidden: Float[Array, "b n t"], following: Int[Array, "b n"]) -> "Truth":
        """Computes the truth from the target's hidden states and the text's next tokens (target ids); -1 is none."""
        logits = jax.lax.stop_gradient(target.logits(hidden))
        best, among_drafted = argmax(logits), head.drafted_part(logits)
        drafted = head.target_ids(argmax(among_drafted)) == best
        share = jnp.exp(jax.nn.logsumexp(among_drafted, axis=-1) - jax.nn.logsumexp(logits, axis=-1))
        ids = following if head.vocabulary is None else _draft_ids(head.vocabulary, logits.shape[-1], following)
        return Truth(hidden=hidden, logits=among_drafted, best=best, drafted=drafted, share=share, following=ids)


def next_tokens(tokens: Int[Array, "b n"]) -> Int[Array, "b n"]:
    """Returns the token after each token; -1 after the last."""
    return jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)


def _draft_ids(vocabulary: Int[Array, "d"], size: int, tokens: Int[Array, "b n"]) -> Int[Array, "b n"]:
    """Returns draft ids of target ids below `size`; -1 of those that the head does not draft, and of -1."""
    ids = jnp.full(size, -1, jnp.int32).at[vocabulary].set(jnp.arange(len(vocabulary), dtype=jnp.int32))
    return jnp.where(tokens < 0, -1, jnp.take(ids, jnp.maximum(tokens, 0), axis=0))


def parts_of(
    head: AnyHead,
    logits: Float[Array, "b n d"],
    guess: Float[Array, "b n t"] | None,
    truth: Truth,
    mask: Bool[Array, "b n"],
    objective: Objective,
) -> Parts:
    """Returns one draft step's part of each of `Report`'s fields.

    Args:
        logits: over the tokens that the head drafts.
        guess: guess of the target's hidden states; None if the head makes none.
        mask: slots that count.
    """
    same = (head.target_ids(argmax(logits)) == truth.best).astype(jnp.float32)
    feature = jnp.zeros(()) if guess is None else mean(smooth_l1(guess, truth.hidden), mask)
    parts = {
        "feature": feature,
        "distribution": distribution_loss(logits, truth, mask, objective),
        "agreement": mean(same, mask),
    }
    if objective.text_weight:
        parts["text"] = mean(text_cross_entropy(logits, truth.following), mask & (truth.following >= 0))
    return parts
