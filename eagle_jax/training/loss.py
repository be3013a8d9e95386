"""The loss of an EAGLE head over draft steps: the target's next-token distribution, for EAGLE-1 also its next feature.

Slot i of a row has the feature of token i and the embedding of token i + 1; the head's output there predicts token
i + 2. In the first step, all features come from the target. In later steps, the head reads its own outputs, as in
drafting: every feature is replaced by the previous step's output at the slot before (EAGLE-3's training-time test,
arXiv:2503.01840; harmonized training, arXiv:2408.15766). Tokens remain those of the text, and a query sees the keys
that it would see in drafting:

    step 2, slot i      true features   step 1   step 2
                        .. i-3 i-2      i-1      i

EAGLE-1 was published with one step: SmoothL1 between predicted and true feature plus 0.1 of the soft cross-entropy of
the next-token distribution, with uniform noise on the input features. EAGLE-3 was published with seven steps: the
cross-entropy alone, each step weighing 0.8 times the one before. A head with a draft vocabulary is trained on the
target's distribution over these tokens, at slots where the most likely token of all is one of them. Means are over the
slots that count, not over whole rows as published, so that they do not depend on the length of prompts.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.training.earlier_steps import append_step, visible_keys
from eagle_jax.training.loss_parts import Labels, LossReport, Parts, add_noise, next_tokens, step_parts, weighted_loss
from eagle_jax.training.objective import Objective


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
) -> tuple[Float[Array, ""], LossReport]:
    """Computes the weighted loss and its parts.

    Args:
        answer: whether the target produced each token; only those count, since only those are drafted.
        features: the target's `features.hidden_states`.
        key: seeds the noise.
        remat: whether to rematerialize activations of draft steps for the gradient.
    """
    embeddings = head.embed(target, tokens[:, 1:])
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    labels = Labels.of(head, target, hidden[:, 1:], next_tokens(tokens)[:, 1:])
    entering = add_noise(head.features(hidden[:, :-1], tuple(tap[:, :-1] for tap in taps)), key, objective.noise)
    if objective.feature_weight and head.guess(entering) is None:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a head of another width than its target; expected 0, "
            "since its outputs cannot be compared with the target's features"
        )

    batch, slots, _ = embeddings.shape
    positions = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (batch, slots))
    cache = head.empty_cache(batch, 0)
    earlier_kv: tuple = ()
    parts = []

    def draft(step: int, entering: Float[Array, "b n h"], earlier_kv: tuple) -> tuple[Array, tuple, Parts]:
        visible = jnp.broadcast_to(visible_keys(slots, step)[None], (batch, slots, slots))
        out, kv = head.forward(embeddings, entering.astype(head.dtype), positions, visible, cache, earlier_kv)
        guess = out.astype(jnp.float32)
        logits, mask = head.logits(target, guess), drafted_slots_mask(answer, step)
        return out, append_step(earlier_kv, kv), step_parts(head, logits, head.guess(guess), labels, mask, objective)

    for step in range(objective.steps):
        step_function = functools.partial(draft, step)
        out, earlier_kv, part = (jax.checkpoint(step_function) if remat else step_function)(entering, earlier_kv)
        parts.append(part)
        entering = jnp.concatenate([entering[:, :1], out[:, :-1]], axis=1)

    return weighted_loss(parts, objective)


def drafted_slots_mask(answer: Bool[Array, "b n"], step: int) -> Bool[Array, "b m"]:
    """Returns the slots, `m = n - 1`, at which draft step `step` occurs: all tokens from the root (drafted from by step
    0, `step` slots earlier) to the drafted token belong to the answer.
    """
    slots = answer.shape[1] - 1
    padded = jnp.pad(answer, ((0, 0), (step, 1)))  # padded[:, i + step] is answer[:, i]
    mask = jnp.ones_like(answer[:, 1:])
    for offset in range(1 - step, 3):  # tokens i + 1 - step (the root) .. i + 2 (drafted from slot i)
        mask = mask & padded[:, offset + step : offset + step + slots]
    return mask
