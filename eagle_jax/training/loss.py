"""What an EAGLE-1 head is trained on: the target's next feature and next-token law, over several draft steps.

Slot i of a row holds the feature of token i and the embedding of token i + 1; the head answers with a guess of
feature i + 1, whose logits tell token i + 2. The published loss looks at one step: SmoothL1 between features plus a
tenth of the soft cross-entropy between the two next-token laws, with uniform noise on the input features. While
drafting, though, the head reads its own guesses from the second step on. So the same is asked again with every feature
replaced by the previous step's guess of it (harmonized training: Zhang et al. 2024), and a query sees what it will see
when it drafts:

    step 2, slot i      true features   step 1   step 2
                        .. i-3 i-2      i-1      i
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.struct import pytree


@dataclasses.dataclass(frozen=True)
class Objective:
    """Weights of the loss.

    Args:
        steps: draft steps trained; 1 is the published EAGLE-1 training.
        decay: weight of each step relative to the one before.
        feature_weight: weight of SmoothL1 between guessed and true feature.
        law_weight: weight of the cross-entropy between guessed and true next-token law (published: 0.1).
        noise: half-width of the uniform noise on true input features.
    """

    steps: int = 1
    decay: float = 0.8
    feature_weight: float = 1.0
    law_weight: float = 0.1
    noise: float = 0.1

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: at least one draft step must be trained")


@pytree
class Report:
    """Per draft step, averaged over the answer tokens that the step can draft.

    Attributes:
        feature: SmoothL1 to the true feature.
        law: soft cross-entropy to the target's next-token law, in nats.
        agreement: share of slots where head and target have the same most likely token.
    """

    feature: Float[Array, "steps"]
    law: Float[Array, "steps"]
    agreement: Float[Array, "steps"]


def loss(
    head: Head,
    target: LM,
    tokens: Int[Array, "b n"],
    answer: Bool[Array, "b n"],
    features: Float[Array, "b n h"],
    key: jax.Array,
    objective: Objective,
) -> tuple[Float[Array, ""], Report]:
    """Weighted loss and its parts.

    Args:
        answer: tokens that the target produced; only those are drafted, so only those count.
        features: the target's hidden states of `tokens`.
        key: seeds the noise.
    """
    embeddings = target.embed(tokens[:, 1:])
    truth = features[:, 1:].astype(jnp.float32)
    true_logits = jax.lax.stop_gradient(target.logits(truth.astype(target.dtype)))
    entering = features[:, :-1].astype(jnp.float32)
    entering = entering + jax.random.uniform(key, entering.shape, minval=-objective.noise, maxval=objective.noise)

    batch, slots, _ = embeddings.shape
    positions = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (batch, slots))
    cache = head.empty_cache(batch, 0)
    beside: tuple = ()
    parts = []
    for step in range(objective.steps):
        visible = jnp.broadcast_to(sight(slots, step)[None], (batch, slots, (step + 1) * slots))
        earlier = jnp.tile(positions, (1, step)) if step else None
        guess, kv = head.forward(embeddings, entering.astype(head.dtype), positions, visible, cache, beside, earlier)
        beside = _append(beside, kv)
        guess = guess.astype(jnp.float32)
        parts.append(
            _parts(guess, truth, target.logits(guess.astype(target.dtype)), true_logits, drafted(answer, step))
        )
        entering = jnp.concatenate([entering[:, :1], guess[:, :-1]], axis=1)

    report = Report(*(jnp.stack(column) for column in zip(*parts, strict=True)))
    weight = objective.decay ** jnp.arange(objective.steps, dtype=jnp.float32)
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


def _parts(guess, truth, logits, true_logits, mask) -> tuple[Array, Array, Array]:
    count = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)

    def mean(values: Float[Array, "b n"]) -> Float[Array, ""]:
        return jnp.sum(jnp.where(mask, values, 0.0)) / count

    same = (jnp.argmax(logits, axis=-1) == jnp.argmax(true_logits, axis=-1)).astype(jnp.float32)
    return mean(smooth_l1(guess, truth)), mean(soft_cross_entropy(logits, true_logits)), mean(same)


def _append(beside: tuple, kv: tuple) -> tuple:
    if not beside:
        return kv
    return tuple(
        (jnp.concatenate([old_k, k], axis=2), jnp.concatenate([old_v, v], axis=2))
        for (old_k, old_v), (k, v) in zip(beside, kv, strict=True)
    )
