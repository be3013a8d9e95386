"""The objective of a run: losses and their weights, with the published values of each method."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Objective:
    """Weights of the loss.

    Args:
        steps: number of trained draft steps; 1 is the published EAGLE-1 training. Medusa and Hydra have one head per
            step, DFlash one block position, P-EAGLE one mask row.
        decay: weight of each step relative to the previous one.
        feature_weight: weight of SmoothL1 between predicted and true feature (published: 1 for EAGLE-1, 0 for EAGLE-3,
            whose normed output is compared).
        distribution_weight: weight of the loss of the next-token distribution (published: 0.1 for EAGLE-1, 1 for
            EAGLE-3).
        distribution_loss: which loss that is. "cross_entropy" of the target's distribution p is published for EAGLE; it
            has the gradient of KL(p, q), called "kl" elsewhere. "text" is the cross-entropy of the text's next token,
            published for DFlash and Medusa. The others optimize the acceptance rate of sampling, a = sum min(p, q):
            "tv" is 1 - a, the total variation (half of the L1 distance); "acceptance" is -log a and "hybrid" is
            w KL + (1 - w) (1 - a) with w = exp(-eta mean a) (LK losses, arXiv:2602.23881).
        eta: rate at which "hybrid" changes from divergence to acceptance.
        text_weight: weight of an additional cross-entropy of the text's next token; DSpark's 0.1 of it and 0.9 of the
            L1 distance are 0.1 and 1.8 of "tv".
        confidence_weight: weight of the confidence head's loss (DSpark).
        selector_weight: weight of the selector's loss (DFlash 2).
        position_weights: weights of block positions (DFlash): "decay", or with distribution_loss "text" also "d_pace"
            (arXiv:2605.18810), the gain of expected accepted tokens by the head's own probabilities.
        noise: half-width of the uniform noise on true input features.
        anchors: number of blocks per row (DFlash), or of tokens per row with mask rows (P-EAGLE).
        down_sample_ratio, down_sample_ratio_min: draft step d, from 0, has max(ratio ** d, min) of the anchors
            (P-EAGLE).
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
            raise ValueError(f"objective.steps={self.steps}; expected at least one draft step")
        if self.anchors < 1:
            raise ValueError(f"objective.anchors={self.anchors}; expected at least one per row")
        if self.decay <= 0:
            raise ValueError(f"objective.decay={self.decay}; expected more than 0, where 1 weights all steps equally")
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
"""Medusa's published training, but with the loss on the target's distribution, as Hydra++'s."""

DFLASH = Objective(steps=15, decay=0.867, feature_weight=0.0, distribution_weight=1.0, noise=0.0)

DSPARK = dataclasses.replace(
    DFLASH, steps=7, decay=0.779, distribution_loss="tv", distribution_weight=1.8, text_weight=0.1
)
"""The published DSpark training: 0.1 of the text's cross-entropy and 0.9 of the L1 distance; decay exp(-1/4)."""

DFLASH2 = dataclasses.replace(DFLASH, steps=7, decay=0.779)
"""DFlash's training in blocks of 8, with the selector's loss."""

PEAGLE = Objective(steps=8, decay=1.0, feature_weight=0.0, distribution_weight=1.0, noise=0.0, anchors=512)
