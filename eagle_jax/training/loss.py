"""What a head is trained on: the target's next-token law, and for EAGLE-1 its next feature, over several draft steps.

Slot i of a row holds a feature of token i and the embedding of token i + 1; the head's output there tells token i + 2.
In the first step every feature is made of what the target computed. While drafting, though, the head reads its own
output from the second step on. So the same is asked again with every feature replaced by the previous step's output at
the slot before (EAGLE-3's training-time test, arXiv:2503.01840; harmonized training, arXiv:2408.15766), tokens stay
those of the text, and a query sees what it will see when it drafts:

    step 2, slot i      true features   step 1   step 2
                        .. i-3 i-2      i-1      i

EAGLE-1 was published with one step: SmoothL1 between guessed and true feature plus a tenth of the soft cross-entropy
between the two next-token laws, with uniform noise on the input features. EAGLE-3 was with seven: the cross-entropy
alone, a step weighing 0.8 times the one before; its outputs are free to be whatever helps the next step. A head with a
draft vocabulary learns the target's law among those tokens, from slots where the likeliest of all is one of them. Means
are over the slots that count, not over whole rows as published: the length of the prompts then does not matter.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.struct import pytree


@dataclasses.dataclass(frozen=True)
class Objective:
    """Weights of the loss.

    Args:
        steps: draft steps trained; 1 is the published EAGLE-1 training. Medusa and Hydra have a head for each.
        decay: weight of each step relative to the one before.
        feature_weight: weight of SmoothL1 between guessed and true feature (published: 1 for EAGLE-1, 0 for EAGLE-3,
            whose normed output it compares).
        law_weight: weight of the cross-entropy between guessed and true next-token law (published: 0.1 for EAGLE-1, 1
            for EAGLE-3).
        noise: half-width of the uniform noise on input features made of true ones.
    """

    steps: int = 1
    decay: float = 0.8
    feature_weight: float = 1.0
    law_weight: float = 0.1
    noise: float = 0.1

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: at least one draft step must be trained")


EAGLE3 = Objective(steps=7, feature_weight=0.0, law_weight=1.0, noise=0.0)
"""The published EAGLE-3 training."""

PARALLEL = Objective(steps=5, feature_weight=0.0, law_weight=1.0, noise=0.0)
"""Medusa's five heads and the weights of their losses; the law is that of the target, as Hydra++ learns it."""


@pytree
class Report:
    """Per draft step, averaged over the answer tokens that the step can draft.

    Attributes:
        feature: SmoothL1 to the true feature; 0 for heads of another width than the target.
        law: soft cross-entropy to the target's next-token law among the tokens that the head drafts, in nats.
        agreement: share of slots where head and target have the same most likely token.
    """

    feature: Float[Array, "steps"]
    law: Float[Array, "steps"]
    agreement: Float[Array, "steps"]


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
    """Weighted loss and its parts.

    Args:
        answer: tokens that the target produced; only those are drafted, so only those count.
        features: what the target made of `tokens` (`features.hidden_states`).
        key: seeds the noise.
        remat: for the gradient, keep of each draft step only what the next one reads and compute the rest again.
    """
    embeddings = head.embed(target, tokens[:, 1:])
    hidden, *taps = jnp.split(features.astype(jnp.float32), 1 + len(head.taps), axis=-1)
    truth = Truth.of(head, target, hidden[:, 1:])
    entering = head.features(hidden[:, :-1], tuple(tap[:, :-1] for tap in taps))
    if objective.noise:
        entering = entering + jax.random.uniform(key, entering.shape, minval=-objective.noise, maxval=objective.noise)

    if objective.feature_weight and head.guess(entering) is None:
        raise ValueError(
            f"feature_weight={objective.feature_weight} with a head of another width than its target; expected 0: its "
            "outputs cannot be compared with the target's features"
        )

    batch, slots, _ = embeddings.shape
    positions = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (batch, slots))
    cache = head.empty_cache(batch, 0)
    beside: tuple = ()
    parts = []

    def draft(step: int, entering: Float[Array, "b n h"], beside: tuple) -> tuple[Array, tuple, tuple]:
        visible = jnp.broadcast_to(sight(slots, step)[None], (batch, slots, (step + 1) * slots))
        earlier = jnp.tile(positions, (1, step)) if step else None
        out, kv = head.forward(embeddings, entering.astype(head.dtype), positions, visible, cache, beside, earlier)
        guess = out.astype(jnp.float32)
        logits, mask = head.logits(target, guess), drafted(answer, step)
        return out, _append(beside, kv), parts_of(head, logits, head.guess(guess), truth, mask)

    for step in range(objective.steps):
        one = functools.partial(draft, step)
        out, beside, part = (jax.checkpoint(one) if remat else one)(entering, beside)
        parts.append(part)
        entering = jnp.concatenate([entering[:, :1], out[:, :-1]], axis=1)

    return weighted(parts, objective)


def weighted(parts: Sequence[tuple], objective: Objective) -> tuple[Float[Array, ""], Report]:
    """The loss out of its parts by draft step, and these."""
    report = Report(*(jnp.stack(column) for column in zip(*parts, strict=True)))
    weight = objective.decay ** jnp.arange(len(parts), dtype=jnp.float32)
    per_step = objective.feature_weight * report.feature + objective.law_weight * report.law
    return jnp.sum(per_step * weight) / jnp.sum(weight), report


def sight(slots: int, step: int) -> Bool[Array, "n m"]:
    """Which keys the queries of draft step `step` see: `m = (step + 1) n`, the keys of steps 0, 1, .. side by side.

    With four slots and step 1 (the slot before the first has nothing true behind it, only itself):

              step 0    step 1
              0 1 2 3   0 1 2 3
        0     . . . .   1 . . .
        1     1 . . .   . 1 . .
        2     1 1 . .   . . 1 .
        3     1 1 1 .   . . . 1
    """
    query, key = jnp.arange(slots)[:, None], jnp.arange(slots)[None]
    true_rows = key <= query - step
    own_rows = [key == query - step + earlier for earlier in range(1, step + 1)]
    return jnp.concatenate([true_rows, *own_rows], axis=1)


def drafted(answer: Bool[Array, "b n"], step: int) -> Bool[Array, "b m"]:
    """Slots that occur when step `step` drafts, `m = n - 1`: all is answer from the root to the drafted token.

    The root is the token `step` slots earlier whose successor step 0 drafts.
    """
    slots = answer.shape[1] - 1
    padded = jnp.pad(answer, ((0, 0), (step, 1)))  # padded[:, i + step] is answer[:, i]
    mask = jnp.ones_like(answer[:, 1:])
    for offset in range(1 - step, 3):  # tokens i + 1 - step (the root) .. i + 2 (drafted from slot i)
        mask = mask & padded[:, offset + step : offset + step + slots]
    return mask


def smooth_l1(guess: Float[Array, "b n h"], truth: Float[Array, "b n h"]) -> Float[Array, "b n"]:
    """Mean over the features of `d^2 / 2` where `|d| < 1`, `|d| - 1/2` elsewhere."""
    distance = jnp.abs(guess - truth)
    return jnp.mean(jnp.where(distance < 1, 0.5 * distance**2, distance - 0.5), axis=-1)


def soft_cross_entropy(logits: Float[Array, "b n v"], true_logits: Float[Array, "b n v"]) -> Float[Array, "b n"]:
    """Cross-entropy of the guessed law under the true one, in nats."""
    law = jax.nn.softmax(true_logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(law * logits, axis=-1)


@pytree
class Truth:
    """What the target makes of every slot.

    Attributes:
        hidden: its final hidden states.
        logits: over the tokens that the head drafts.
        best: its most likely token of all.
        drafted: whether the head drafts that one.
    """

    hidden: Float[Array, "b n t"]
    logits: Float[Array, "b n d"]
    best: Int[Array, "b n"]
    drafted: Bool[Array, "b n"]

    @staticmethod
    def of(head: AnyHead, target: LM, hidden: Float[Array, "b n t"]) -> "Truth":
        logits = jax.lax.stop_gradient(target.logits(hidden))
        best, among_drafted = jnp.argmax(logits, axis=-1), head.drafted_part(logits)
        drafted = head.target_ids(jnp.argmax(among_drafted, axis=-1)) == best
        return Truth(hidden=hidden, logits=among_drafted, best=best, drafted=drafted)


def parts_of(
    head: AnyHead,
    logits: Float[Array, "b n d"],
    guess: Float[Array, "b n t"] | None,
    truth: Truth,
    mask: Bool[Array, "b n"],
) -> tuple[Array, Array, Array]:
    """One draft step's part of each of `Report`'s fields.

    Args:
        logits: over the tokens that the head drafts.
        guess: of the target's hidden states; None if the head makes none.
        mask: slots that count.
    """

    def mean(values: Float[Array, "b n"], mask: Bool[Array, "b n"]) -> Float[Array, ""]:
        return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)

    same = (head.target_ids(jnp.argmax(logits, axis=-1)) == truth.best).astype(jnp.float32)
    feature = jnp.zeros(()) if guess is None else mean(smooth_l1(guess, truth.hidden), mask)
    law = mean(soft_cross_entropy(logits, truth.logits), mask & truth.drafted)
    return feature, law, mean(same, mask)


def _append(beside: tuple, kv: tuple) -> tuple:
    if not beside:
        return kv
    return tuple(
        (jnp.concatenate([old_k, k], axis=2), jnp.concatenate([old_v, v], axis=2))
        for (old_k, old_v), (k, v) in zip(beside, kv, strict=True)
    )
