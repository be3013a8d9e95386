"""The loss of a P-EAGLE head against the target's next-token distribution, at text rows and at mask rows.

Text rows are EAGLE-3's: slot i has the feature of token i and the embedding of token i + 1, and predicts token i + 2.
Some of them, the anchors, are followed by mask rows, as in drafting: the row of depth d at slot a + d predicts token
a + d + 2, and sees the text up to its anchor a and the mask rows between:

    depth                0 0 0 0 0   1 1 1   2
    anchor               0 1 2 3 4   0 2 3   2
    slot                 0 1 2 3 4   1 3 4   4
    anchor 2, depth 1    x x x . .   . x .   .
    anchor 2, depth 2    x x x . .   . x .   x

Depth d has a random share max(r ** d, r_min) of the anchors (conditional-on-distribution sampling, arXiv:2602.01469,
section 3). The subsets are nested, so that a row's predecessors are included. All rows are computed in one forward
pass and have equal weights, before `objective.decay` (published: 1).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.struct import pytree, static
from eagle_jax.training.dflash_loss import choose_anchors
from eagle_jax.training.loss import drafted_slots_mask
from eagle_jax.training.loss_parts import Labels, LossReport, Parts, add_noise, next_tokens, step_parts, weighted_loss
from eagle_jax.training.objective import Objective


@pytree
class Sample:
    """The rows of a forward pass, by depth: all text rows, then the mask rows.

    Attributes:
        anchor, depth: anchor and depth of each row, which has slot `anchor + depth`.
        chosen: whether each row is not padding.
        sizes: number of rows of each depth.
    """

    anchor: Int[Array, "b r"]
    depth: Int[Array, "r"]
    chosen: Bool[Array, "b r"]
    sizes: tuple[int, ...] = static()

    @property
    def visible(self) -> Bool[Array, "b r r"]:
        """Which rows each row sees: text rows up to its anchor, and mask rows of the same anchor up to itself."""
        same = self.anchor[:, :, None] == self.anchor[:, None, :]
        text = (self.depth == 0)[None, None, :] & (self.anchor[:, None, :] <= self.anchor[:, :, None])
        return text | same & (self.depth[None, :] <= self.depth[:, None])[None]


def peagle_loss(
    head: Head3,
    target: LM,
    tokens: Int[Array, "b n"],
    answer: Bool[Array, "b n"],
    features: Float[Array, "b n f"],
    key: jax.Array,
    objective: Objective,
    *,
    remat: bool = False,
) -> tuple[Float[Array, ""], LossReport]:
    """Computes the weighted loss and its parts by depth, up to `objective.steps`; see `loss.loss`.

    Args:
        key: chooses the anchors, and seeds the noise.
    """
    if objective.feature_weight:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a P-EAGLE head; expected 0, since mask rows predict no "
            "features"
        )
    steps, slots = min(objective.steps, head.num_drafted or 1), answer.shape[1] - 1
    sample_key, noise_key = jax.random.split(key)
    sample = choose_rows(answer, steps, objective, sample_key)
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    text_features = add_noise(
        head.features(hidden[:, :-1], tuple(tap[:, :-1] for tap in taps)), noise_key, objective.noise
    )
    out = (jax.checkpoint(_outputs) if remat else _outputs)(head, target, tokens, text_features, sample)

    labels = Labels.of(head, target, hidden[:, 1:], next_tokens(tokens)[:, 1:])
    parts, counts, first = [], [], 0
    for depth, size in enumerate(sample.sizes):
        rows = slice(first, first + size)
        positions, first = sample.anchor[:, rows] + depth, first + size
        clipped = jnp.minimum(positions, slots - 1)  # rows after the text are masked
        mask = (
            sample.chosen[:, rows]
            & (positions < slots)
            & jnp.take_along_axis(drafted_slots_mask(answer, depth), clipped, axis=1)
        )
        part = functools.partial(_part, head, target, objective=objective)
        parts.append((jax.checkpoint(part) if remat else part)(out[:, rows], labels, clipped, mask))
        counts.append(jnp.sum(mask).astype(jnp.float32))
    return weighted_loss(parts, objective, jnp.stack(counts))


def choose_rows(answer: Bool[Array, "b n"], steps: int, objective: Objective, key: jax.Array) -> Sample:
    """Samples the rows for `steps` depths. Anchors are slots whose token and prediction belong to an answer."""
    batch, slots = answer.shape[0], answer.shape[1] - 1
    anchors, is_anchor = choose_anchors(answer[:, 1:], objective.anchors, key)
    rank, count = jnp.arange(anchors.shape[1]), jnp.sum(is_anchor, axis=1)[:, None].astype(jnp.float32)
    text = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (batch, slots))
    sizes, anchors_by_depth, chosen = [slots], [text], [jnp.ones((batch, slots), bool)]
    for depth in range(1, steps):
        share = max(objective.down_sample_ratio**depth, objective.down_sample_ratio_min)
        size = math.ceil(share * anchors.shape[1])
        sizes.append(size)
        anchors_by_depth.append(anchors[:, :size])
        chosen.append(rank[None, :size] < jnp.ceil(share * count).astype(jnp.int32))
    depths = jnp.concatenate([jnp.full(size, depth, jnp.int32) for depth, size in enumerate(sizes)])
    return Sample(jnp.concatenate(anchors_by_depth, axis=1), depths, jnp.concatenate(chosen, axis=1), tuple(sizes))


def _outputs(
    head: Head3, target: LM, tokens: Int[Array, "b n"], text_features: Float[Array, "b m h"], sample: Sample
) -> Float[Array, "b r h"]:
    """Returns the head's outputs at all rows, in one forward pass."""
    batch, slots, _ = text_features.shape
    mask_embeddings, mask_features = head.mask_rows(target, batch, sample.anchor.shape[1] - slots)
    embeddings = jnp.concatenate([head.embed(target, tokens[:, 1:]), mask_embeddings], axis=1)
    features = jnp.concatenate([text_features.astype(head.dtype), mask_features.astype(head.dtype)], axis=1)
    positions = sample.anchor + sample.depth[None]
    return head.forward(embeddings, features, positions, sample.visible, head.empty_cache(batch, 0))[0]


def _part(
    head: Head3,
    target: LM,
    out: Float[Array, "b c h"],
    labels: Labels,
    positions: Int[Array, "b c"],
    mask: Bool[Array, "b c"],
    objective: Objective,
) -> Parts:
    """Returns the fields of `LossReport` for one depth, whose rows have slots `positions`."""

    def rows_at(values: Array) -> Array:
        return jax.vmap(lambda row, index: row[index])(values, positions)

    logits = head.logits(target, out.astype(jnp.float32))
    return step_parts(head, logits, None, jax.tree.map(rows_at, labels), mask, objective)
