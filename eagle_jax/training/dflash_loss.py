"""The loss of a DFlash head: it learns the target's next-token distribution at the slots of blocks within the text.

A block begins at an anchor, a token of an answer, and sees the text before it, as when drafting. The guess k tokens
after the anchor is compared with what the target made of the text up to there, and weighs `decay ** (k - 1)`:

    text      a b c d e f g h
    anchor 2  . .[c m m m]          guesses d, e, f from a, b and c
    anchor 4  . . . .[e m m m]      guesses f, g, h from a, b, c, d and e

The authors learn from the text's own tokens, with a decay of exp(-1/7) in blocks of 16 and exp(-1/4) in blocks of 8
(arXiv:2602.06036); JetSpec from the target's distribution (arXiv:2606.18394), which is taken here unless the objective
says otherwise: the text is the target's, and its distribution says more than one token drawn from it. What DSpark's and
DFlash 2's heads learn besides is in `edges_loss`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.models.lm import LM
from eagle_jax.training.edges_loss import choices, confidence_loss, selector_loss, teacher_forced_logits
from eagle_jax.training.loss_parts import (
    Parts,
    Report,
    Truth,
    d_pace_weights,
    mean,
    next_tokens,
    noisy,
    overlap,
    parts_of,
    stacked,
    text_cross_entropy,
    weighted,
)
from eagle_jax.training.objective import Objective


def dflash_loss(
    head: DFlash,
    target: LM,
    tokens: Int[Array, "b n"],
    answer: Bool[Array, "b n"],
    features: Float[Array, "b n f"],
    key: jax.Array,
    objective: Objective,
    *,
    remat: bool = False,
) -> tuple[Float[Array, ""], Report]:
    """Computes the weighted loss and its parts by slot; see `loss.loss`. Slots beyond `objective.steps` are left out.

    Args:
        key: chooses the anchors, and seeds the noise.
    """
    if objective.feature_weight:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a DFlash head; expected 0: it drafts tokens and guesses "
            "no features"
        )
    steps, length = min(objective.steps, head.num_drafted), answer.shape[1]
    anchor_key, noise_key = jax.random.split(key)
    anchors, chosen = choose_anchors(answer, objective.anchors, anchor_key)
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    if objective.noise:
        keys = jax.random.split(noise_key, len(taps))
        taps = [noisy(tap, key, objective.noise) for tap, key in zip(taps, keys, strict=True)]
    over_text = functools.partial(head.over_text, target, depth=steps)
    slots = (jax.checkpoint(over_text) if remat else over_text)(tokens, tuple(taps), anchors)

    # what the target made of the anchor and of the tokens after it; the last of a row count for nothing
    at = anchors[..., None] + jnp.arange(steps, dtype=jnp.int32)[None, None]
    rows = jnp.minimum(at, length - 1).reshape(len(anchors), -1)
    previous, following = (jnp.take_along_axis(ids, rows, axis=1) for ids in (tokens, next_tokens(tokens)))
    truth = Truth.of(head, target, jnp.take_along_axis(hidden, rows[..., None], axis=1), following)
    truth = jax.tree.map(lambda part: part.reshape(*at.shape, *part.shape[2:]), truth)
    mask = chosen[..., None] & _answered(answer, at + 1)
    return _of_blocks(head, slots, previous.reshape(at.shape), truth, mask, objective)


def _of_blocks(
    head: DFlash,
    slots: BlockOutput,
    previous: Int[Array, "b a p"],
    truth: Truth,
    mask: Bool[Array, "b a p"],
    objective: Objective,
) -> tuple[Float[Array, ""], Report]:
    """Returns the loss of slots, given the text's tokens before them and what the target says there."""
    logits, drafted = teacher_forced_logits(head, slots, previous), mask & (truth.following >= 0)
    others: dict[str, tuple[Array, Array]] = {}  # losses besides those on the distribution, and the slots they are of
    if head.config.confidence is not None:
        others["confidence"] = confidence_loss(head, slots, previous, overlap(logits, truth)), mask
    if head.config.selector is not None:
        losses, present = selector_loss(head, slots, previous, truth.following)
        right = head.target_ids(choices(head, slots, previous)) == truth.best
        others |= {"selector": (losses, drafted), "candidates": (present.astype(jnp.float32), mask)}
        others["agreement"] = right.astype(jnp.float32), mask  # instead of the slots' own

    def part(k: int) -> Parts:
        true = jax.tree.map(lambda part: part[:, :, k], truth)
        main_losses = parts_of(head, logits[:, :, k], None, true, mask[..., k], objective)
        return main_losses | {name: mean(losses[..., k], counted[..., k]) for name, (losses, counted) in others.items()}

    parts = [part(k) for k in range(mask.shape[2])]
    if objective.position_weights == "decay":
        return weighted(parts, objective)
    text = jnp.where(drafted, text_cross_entropy(logits, truth.following), 0.0)
    loss = objective.distribution_weight * d_pace_loss(text, drafted, mask)
    if "selector" in others:
        loss += objective.selector_weight * d_pace_loss(others["selector"][0], drafted, mask)
    if "confidence" in others:
        loss += objective.confidence_weight * mean(*others["confidence"])
    return loss, stacked(parts)


def d_pace_loss(
    losses: Float[Array, "b a p"], drafted: Bool[Array, "b a p"], mask: Bool[Array, "b a p"]
) -> Float[Array, ""]:
    """Returns the text's cross-entropies with D-PACE's weights (`parts.d_pace_weights`), per slot in `mask`.

    Args:
        drafted: slots among them whose token the head drafts; it has no chance at the others.
    """
    weights = d_pace_weights(jnp.where(drafted, losses, jnp.inf), mask)
    return mean(jnp.where(drafted, weights * losses, 0.0), mask)


def choose_anchors(
    answer: Bool[Array, "b n"], count: int, key: jax.Array
) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Returns random tokens of answers that are followed by one, each once; and which of them are such tokens."""
    followed = answer & jnp.pad(answer[:, 1:], ((0, 0), (0, 1)))
    ranks = jnp.where(followed, jax.random.uniform(key, answer.shape), -1.0)
    best, anchors = jax.lax.top_k(ranks, min(count, answer.shape[1]))
    return anchors, best >= 0


def _answered(answer: Bool[Array, "b n"], at: Int[Array, "b a p"]) -> Bool[Array, "b a p"]:
    """Returns whether the token there and all before it in its block belong to the answer."""
    slots = answer.shape[1]
    is_answer = jnp.take_along_axis(answer, jnp.minimum(at, slots - 1).reshape(len(at), -1), axis=1).reshape(at.shape)
    return jnp.cumprod(is_answer & (at < slots), axis=2).astype(bool)
