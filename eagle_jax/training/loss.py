"""The loss of a head: it learns the target's next-token distribution, for EAGLE-1 its next feature, over draft steps.

Slot i of a row holds a feature of token i and the embedding of token i + 1; the head's output there is for token i + 2.
In the first step every feature is made of what the target computed. While drafting, though, the head reads its own
output from the second step on. So the same is asked again with every feature replaced by the previous step's output at
the slot before (EAGLE-3's training-time test, arXiv:2503.01840; harmonized training, arXiv:2408.15766), tokens stay
those of the text, and a query sees what it will see when it drafts:

    step 2, slot i      true features   step 1   step 2
                        .. i-3 i-2      i-1      i

EAGLE-1 was published with one step: SmoothL1 between guessed and true feature plus a tenth of the soft cross-entropy
between the two next-token distributions, with uniform noise on the input features. EAGLE-3 was with seven: the
cross-entropy alone, a step weighing 0.8 times the one before; its outputs are free to be what helps the next step.
A head with a draft vocabulary learns the target's distribution among those tokens, from slots where the likeliest of
all is one of them. Means are over the slots that count, not over whole rows as published: the length of the prompts
then does not matter.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.training.earlier_steps import sight, with_step
from eagle_jax.training.loss_parts import Parts, Report, Truth, next_tokens, noisy, parts_of, weighted
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
) -> tuple[Float[Array, ""], Report]:
    """Computes the weighted loss and its parts.

    Args:
        answer: tokens that the target produced; only those are drafted, so only those count.
        features: what the target made of `tokens` (`features.hidden_states`).
        key: seeds the noise.
        remat: for the gradient, keep of each draft step only what the next one reads and compute the rest again.
    """
    embeddings = head.embed(target, tokens[:, 1:])
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    truth = Truth.of(head, target, hidden[:, 1:], next_tokens(tokens)[:, 1:])
    entering = noisy(head.features(hidden[:, :-1], tuple(tap[:, :-1] for tap in taps)), key, objective.noise)
    if objective.feature_weight and head.guess(entering) is None:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a head of another width than its target; expected 0: its "
            "outputs cannot be compared with the target's features"
        )

    batch, slots, _ = embeddings.shape
    positions = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (batch, slots))
    cache = head.empty_cache(batch, 0)
    earlier_kv: tuple = ()
    parts = []

    def draft(step: int, entering: Float[Array, "b n h"], earlier_kv: tuple) -> tuple[Array, tuple, Parts]:
        visible = jnp.broadcast_to(sight(slots, step)[None], (batch, slots, slots))
        out, kv = head.forward(embeddings, entering.astype(head.dtype), positions, visible, cache, earlier_kv)
        guess = out.astype(jnp.float32)
        logits, mask = head.logits(target, guess), drafted_slots_mask(answer, step)
        return out, with_step(earlier_kv, kv), parts_of(head, logits, head.guess(guess), truth, mask, objective)

    for step in range(objective.steps):
        one = functools.partial(draft, step)
        out, earlier_kv, part = (jax.checkpoint(one) if remat else one)(entering, earlier_kv)
        parts.append(part)
        entering = jnp.concatenate([entering[:, :1], out[:, :-1]], axis=1)

    return weighted(parts, objective)


def drafted_slots_mask(answer: Bool[Array, "b n"], step: int) -> Bool[Array, "b m"]:
    """Slots that occur when step `step` drafts, `m = n - 1`: all is answer from the root to the drafted token.

    The root is the token `step` slots earlier whose successor step 0 drafts.
    """
    slots = answer.shape[1] - 1
    padded = jnp.pad(answer, ((0, 0), (step, 1)))  # padded[:, i + step] is answer[:, i]
    mask = jnp.ones_like(answer[:, 1:])
    for offset in range(1 - step, 3):  # tokens i + 1 - step (the root) .. i + 2 (drafted from slot i)
        mask = mask & padded[:, offset + step : offset + step + slots]
    return mask
