"""Loss of Medusa's and Hydra's heads: the target's next-token distribution, k + 2 tokens ahead for head k.

Head k reads the target's hidden state of token i at slot i, and predicts token i + k + 2; Hydra's heads also read the
text's tokens in between:

    head 0, slot i      i   i+1  [i+2]
    head 1, slot i      i   i+1   i+2  [i+3]
                      hidden root   t1

Medusa was published with the cross-entropy of the text's tokens, Hydra++ with that of the target's distribution, which
is the default for both here: it says more than one token drawn from it.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.heads import Heads
from eagle_jax.models.lm import LM
from eagle_jax.training.loss import drafted_slots_mask
from eagle_jax.training.loss_parts import Labels, LossReport, Parts, add_noise, next_tokens, step_parts, weighted_loss
from eagle_jax.training.objective import Objective


def heads_loss(
    head: Heads,
    target: LM,
    tokens: Int[Array, "b n"],
    answer: Bool[Array, "b n"],
    features: Float[Array, "b n h"],
    key: jax.Array,
    objective: Objective,
    *,
    remat: bool = False,
) -> tuple[Float[Array, ""], LossReport]:
    """Computes the weighted loss and its parts by head, up to `objective.steps`; see `loss.loss`."""
    if objective.feature_weight:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with {type(head).__name__} heads; expected 0, since they "
            "predict no features"
        )
    embeddings = target.embed(tokens[:, 1:])
    hidden = features.astype(jnp.float32)
    labels = Labels.of(head, target, hidden[:, 1:], next_tokens(tokens)[:, 1:])
    read = add_noise(hidden[:, :-1], key, objective.noise)

    def part(level: int, x: Float[Array, "b m w"]) -> Parts:
        # labels and mask at slot i + level belong to the draft step that began `level` slots before
        ahead, mask = jax.tree.map(lambda values: values[:, level:], (labels, drafted_slots_mask(answer, level)))
        return step_parts(head, head.logits(level, x), None, ahead, mask, objective)

    inputs = head.over_text(read.astype(embeddings.dtype), embeddings)[: objective.steps]
    losses = [functools.partial(part, level) for level in range(len(inputs))]
    parts = [(jax.checkpoint(loss) if remat else loss)(x) for loss, x in zip(losses, inputs, strict=True)]
    return weighted_loss(parts, objective)
