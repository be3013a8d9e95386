"""The loss of a DFlash head: the target's next-token distribution at the positions of blocks in the text.

A block begins at an anchor, a token of an answer, and sees the text before it, as in drafting. The prediction k tokens
after the anchor is compared with the target's distribution there, with weight `decay ** (k - 1)`:

    text      a b c d e f g h
    anchor 2  . .[c m m m]          predicts d, e, f from a, b and c
    anchor 4  . . . .[e m m m]      predicts f, g, h from a, b, c, d and e

The authors train on the text's own tokens, with a decay of exp(-1/7) in blocks of 16 and exp(-1/4) in blocks of 8
(arXiv:2602.06036). JetSpec trains on the target's distribution (arXiv:2606.18394), which is the default here: it says
more than one token drawn from it. `edges_loss` has the further losses of DSpark and DFlash 2.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.models.lm import LM
from eagle_jax.training.edges_loss import choices, confidence_loss, selector_loss, teacher_forced_logits
from eagle_jax.training.loss_parts import (
    Labels,
    LossReport,
    Parts,
    add_noise,
    d_pace_weights,
    mean,
    next_tokens,
    overlap,
    stack_parts,
    step_parts,
    text_cross_entropy,
    weighted_loss,
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
) -> tuple[Float[Array, ""], LossReport]:
    """Computes the weighted loss and its parts by block position up to `objective.steps`; see `loss.loss`.

    Args:
        key: chooses the anchors, and seeds the noise.
    """
    if objective.feature_weight:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a DFlash head; expected 0, since it predicts no features"
        )
    steps, length = min(objective.steps, head.num_drafted), answer.shape[1]
    anchor_key, noise_key = jax.random.split(key)
    anchors, chosen = choose_anchors(answer, objective.anchors, anchor_key)
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    if objective.noise:
        keys = jax.random.split(noise_key, len(taps))
        taps = [add_noise(tap, key, objective.noise) for tap, key in zip(taps, keys, strict=True)]
    over_text = functools.partial(head.over_text, target, depth=steps)
    slots = (jax.checkpoint(over_text) if remat else over_text)(tokens, tuple(taps), anchors)

    # the target's outputs at the anchor and after it; positions beyond the row are masked
    positions = anchors[..., None] + jnp.arange(steps, dtype=jnp.int32)[None, None]
    rows = jnp.minimum(positions, length - 1).reshape(len(anchors), -1)
    previous, following = (jnp.take_along_axis(ids, rows, axis=1) for ids in (tokens, next_tokens(tokens)))
    labels = Labels.of(head, target, jnp.take_along_axis(hidden, rows[..., None], axis=1), following)
    labels = jax.tree.map(lambda part: part.reshape(*positions.shape, *part.shape[2:]), labels)
    mask = chosen[..., None] & _answer_mask(answer, positions + 1)
    return _block_loss(head, slots, previous.reshape(positions.shape), labels, mask, objective)


def _block_loss(
    head: DFlash,
    slots: BlockOutput,
    previous: Int[Array, "b a p"],
    labels: Labels,
    mask: Bool[Array, "b a p"],
    objective: Objective,
) -> tuple[Float[Array, ""], LossReport]:
    """Returns the loss of block positions, given the text's tokens before them and the labels."""
    logits, drafted = teacher_forced_logits(head, slots, previous), mask & (labels.following >= 0)
    other_losses: dict[str, tuple[Array, Array]] = {}  # further losses, with their masks
    if head.config.confidence is not None:
        other_losses["confidence"] = confidence_loss(head, slots, previous, overlap(logits, labels)), mask
    if head.config.selector is not None:
        losses, present = selector_loss(head, slots, previous, labels.following)
        right = head.target_ids(choices(head, slots, previous)) == labels.best
        other_losses |= {"selector": (losses, drafted), "candidates": (present.astype(jnp.float32), mask)}
        other_losses["agreement"] = right.astype(jnp.float32), mask  # replaces the agreement of the block's own logits

    def part(k: int) -> Parts:
        true = jax.tree.map(lambda part: part[:, :, k], labels)
        main_losses = step_parts(head, logits[:, :, k], None, true, mask[..., k], objective)
        return main_losses | {
            name: mean(losses[..., k], counted[..., k]) for name, (losses, counted) in other_losses.items()
        }

    parts = [part(k) for k in range(mask.shape[2])]
    if objective.position_weights == "decay":
        return weighted_loss(parts, objective)
    text = jnp.where(drafted, text_cross_entropy(logits, labels.following), 0.0)
    loss = objective.distribution_weight * d_pace_loss(text, drafted, mask)
    if "selector" in other_losses:
        loss += objective.selector_weight * d_pace_loss(other_losses["selector"][0], drafted, mask)
    if "confidence" in other_losses:
        loss += objective.confidence_weight * mean(*other_losses["confidence"])
    return loss, stack_parts(parts)


def d_pace_loss(
    losses: Float[Array, "b a p"], drafted: Bool[Array, "b a p"], mask: Bool[Array, "b a p"]
) -> Float[Array, ""]:
    """Returns the mean over `mask` of the text's cross-entropy with D-PACE's weights (`d_pace_weights`).

    Args:
        drafted: positions in `mask` whose token is in the draft vocabulary.
    """
    weights = d_pace_weights(jnp.where(drafted, losses, jnp.inf), mask)
    return mean(jnp.where(drafted, weights * losses, 0.0), mask)


def choose_anchors(
    answer: Bool[Array, "b n"], count: int, key: jax.Array
) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Returns random distinct positions of answer tokens that are followed by another, and which of them are valid."""
    followed = answer & jnp.pad(answer[:, 1:], ((0, 0), (0, 1)))
    ranks = jnp.where(followed, jax.random.uniform(key, answer.shape), -1.0)
    best, anchors = jax.lax.top_k(ranks, min(count, answer.shape[1]))
    return anchors, best >= 0


def _answer_mask(answer: Bool[Array, "b n"], positions: Int[Array, "b a p"]) -> Bool[Array, "b a p"]:
    """Returns whether the token at each position, and all before it in its block, belong to the answer."""
    slots = answer.shape[1]
    clipped = jnp.minimum(positions, slots - 1).reshape(len(positions), -1)
    is_answer = jnp.take_along_axis(answer, clipped, axis=1).reshape(positions.shape)
    return jnp.cumprod(is_answer & (positions < slots), axis=2).astype(bool)
