"""The objective of a run: its losses, their weights, and the published choices of each method."""

import dataclasses
from typing import Literal


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
        distribution_loss: which loss that is. "cross_entropy", of the target's distribution p, is published for EAGLE;
            it has the gradient of the divergence KL(p, q), which others call "kl". "text" is the cross-entropy of the
            text's own next token alone, as DFlash and Medusa were published. The others aim at a, the share of its
            tokens that sampling would accept, the sum of min(p, q): "tv" is 1 - a, the total variation (half of the L1
            distance), and of the LK losses (arXiv:2602.23881) "acceptance" is -log a and "hybrid" is
            w KL + (1 - w) (1 - a) with w = exp(-eta mean a), at first the divergence, later acceptance.
        eta: how soon the hybrid turns.
        text_weight: weight of the cross-entropy of the text's own next token, added to that loss; DSpark's 0.1 of it
            and 0.9 of the L1 distance are 0.1 and 1.8 of "tv".
        confidence_weight: weight of the confidence head's loss (DSpark).
        selector_weight: weight of the selector's loss (DFlash 2).
        position_weights: how much the slots of a block weigh (DFlash): "decay" of their number alone, or "d_pace"
            (arXiv:2605.18810) as much as the expected number of accepted tokens gains by them, which the head's own
            probabilities of the text tell; with "text" alone.
        noise: half-width of the uniform noise on input features made of true ones.
        anchors: blocks of each row (DFlash), or tokens of it after which mask rows are put (P-EAGLE, whose first step
            learns from every token, as other methods do).
        down_sample_ratio, down_sample_ratio_min: step d, counted from 0, has max(ratio ** d, min) of these (P-EAGLE).
    """

    steps: int = 1
    decay: float = 0.8
    feature_weight: float = 1.0
    distribution_weight: float = 0.1
    noise: float = 0.1
    distribution_loss: Literal["cross_entropy", "text", "tv", "acceptance", "hybrid"] = "cross_entropy"
    eta: float = 3.0
    text_weight: float = 0.0
    confidence_weight: float = 1.0
    selector_weight: float = 1.0
    position_weights: Literal["decay", "d_pace"] = "decay"
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
        weights = [field.name for field in dataclasses.fields(self) if field.name.endswith("_weight")]
        for name in (*weights, "noise", "eta"):
            if getattr(self, name) < 0:
                raise ValueError(f"objective.{name}={getattr(self, name)}; expected 0 or more")
        if self.text_weight and self.distribution_loss == "text":
            raise ValueError(
                f"objective.text_weight={self.text_weight} with distribution_loss=text, the same loss; expected "
                "objective.text_weight=0 (dspark's default is 0.1), and distribution_weight alone"
            )
        if self.position_weights == "d_pace" and self.distribution_loss != "text":
            raise ValueError(
                f"objective.position_weights=d_pace with distribution_loss={self.distribution_loss}; expected text, "
                "whose probabilities make these weights"
            )


EAGLE3 = Objective(steps=7, feature_weight=0.0, distribution_weight=1.0, noise=0.0)
"""The published EAGLE-3 training."""

PARALLEL = Objective(steps=5, feature_weight=0.0, distribution_weight=1.0, noise=0.0)
"""Medusa's five heads and the weights of their losses; the distribution is that of the target, as Hydra++ learns it."""

DFLASH = Objective(steps=15, decay=0.867, feature_weight=0.0, distribution_weight=1.0, noise=0.0)

DSPARK = dataclasses.replace(
    DFLASH, steps=7, decay=0.779, distribution_loss="tv", distribution_weight=1.8, text_weight=0.1
)
"""0.1 of the text's cross-entropy, 0.9 of the L1 distance, and the confidence head's loss; decay exp(-1/4)."""

DFLASH2 = dataclasses.replace(DFLASH, steps=7, decay=0.779)
"""DFlash's in blocks of 8, and the selector's loss."""

PEAGLE = Objective(steps=8, decay=1.0, feature_weight=0.0, distribution_weight=1.0, noise=0.0, anchors=512)
