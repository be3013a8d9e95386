"""What a DFlash head is trained on: the target's next-token distribution at every slot of blocks within the text.

A block begins at an anchor, a token of an answer, and sees the text before it, as when drafting. The guess k tokens
behind the anchor is compared with what the target made of the text up to there, and weighs `decay ** (k - 1)`:

    text      a b c d e f g h
    anchor 2  . .[c m m m]          guesses d, e, f from a, b and c
    anchor 4  . . . .[e m m m]      guesses f, g, h from a, b, c, d and e

The authors learn from the text's own tokens, with a decay of exp(-1/7) in blocks of 16 and exp(-1/4) in blocks of 8
(arXiv:2602.06036); JetSpec from the target's distribution (arXiv:2606.18394), which is taken here unless the objective
says otherwise: the text is the target's, and its distribution says more than one token drawn from it.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.dflash import DFlash
from eagle_jax.models.lm import LM
from eagle_jax.training.objective import Objective
from eagle_jax.training.parts import (
    Report,
    Truth,
    d_pace_weights,
    mean,
    next_tokens,
    parts_of,
    stacked,
    text_cross_entropy,
    weighted,
)


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
    """Weighted loss and its parts by slot; see `loss.loss`. Slots beyond `objective.steps` are left out.

    Args:
        key: chooses the anchors, and seeds the noise.
    """
    if objective.feature_weight:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a DFlash head; expected 0: it drafts tokens and guesses "
            "no features"
        )
    steps, slots = min(objective.steps, head.num_drafted), answer.shape[1]
    anchor_key, noise_key = jax.random.split(key)
    anchors, chosen = choose_anchors(answer, objective.anchors, anchor_key)
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    if objective.noise:
        keys = jax.random.split(noise_key, len(taps))
        width = objective.noise
        taps = [
            tap + jax.random.uniform(key, tap.shape, minval=-width, maxval=width)
            for tap, key in zip(taps, keys, strict=True)
        ]
    over_text = functools.partial(head.over_text, target, depth=steps)
    logits = (jax.checkpoint(over_text) if remat else over_text)(tokens, tuple(taps), anchors).logits

    # what the target made of the anchor and of the tokens behind it; the last of a row count for nothing
    at = anchors[..., None] + jnp.arange(steps, dtype=jnp.int32)[None, None]
    rows = jnp.minimum(at, slots - 1).reshape(len(anchors), -1)
    following = jnp.take_along_axis(next_tokens(tokens), rows, axis=1)
    truth = Truth.of(head, target, jnp.take_along_axis(hidden, rows[..., None], axis=1), following)
    truth = jax.tree.map(lambda part: part.reshape(*at.shape, *part.shape[2:]), truth)
    mask = chosen[..., None] & _answered(answer, at + 1)
    parts = [
        parts_of(
            head, logits[:, :, k], None, jax.tree.map(lambda part, k=k: part[:, :, k], truth), mask[..., k], objective
        )
        for k in range(steps)
    ]
    if objective.position_weights == "d_pace":
        return objective.distribution_weight * d_pace_loss(logits, truth.following, mask), stacked(parts)
    return weighted(parts, objective)


def d_pace_loss(
    logits: Float[Array, "b a p d"], following: Int[Array, "b a p"], mask: Bool[Array, "b a p"]
) -> Float[Array, ""]:
    """The text's cross-entropy with D-PACE's weights (`parts.d_pace_weights`), over the number of slots that count."""
    losses, drafted = text_cross_entropy(logits, following), following >= 0
    weights = d_pace_weights(jnp.where(drafted, losses, jnp.inf), mask)
    return mean(jnp.where(drafted, weights * losses, 0.0), mask)


def choose_anchors(
    answer: Bool[Array, "b n"], count: int, key: jax.Array
) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Some tokens of answers that are followed by one, at random, each once; and which of them are such tokens."""
    followed = answer & jnp.pad(answer[:, 1:], ((0, 0), (0, 1)))
    ranks = jnp.where(followed, jax.random.uniform(key, answer.shape), -1.0)
    best, anchors = jax.lax.top_k(ranks, min(count, answer.shape[1]))
    return anchors, best >= 0


def _answered(answer: Bool[Array, "b n"], at: Int[Array, "b a p"]) -> Bool[Array, "b a p"]:
    """Whether the token there and all before it in its block belong to the answer."""
    slots = answer.shape[1]
    there = jnp.take_along_axis(answer, jnp.minimum(at, slots - 1).reshape(len(at), -1), axis=1).reshape(at.shape)
    return jnp.cumprod(there & (at < slots), axis=2).astype(bool)
