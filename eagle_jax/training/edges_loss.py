"""Losses of the parts of DSpark's and DFlash 2's heads that make tokens depend on the previous token of a block.

All of them read the text's own previous token, not a drafted one (teacher forcing):

    Markov head (DSpark)          changes the logits, on which the losses of `dflash_loss` are computed
    confidence head (DSpark)      binary cross-entropy with a = sum min(p, q), the acceptance rate of the token
    selector (DFlash 2)           cross-entropy of the text's token among the candidates

(arXiv:2607.05147, section 3; z-lab/dflash.) Losses are per block position.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.sharding import argmax


def teacher_forced_logits(head: DFlash, slots: BlockOutput, previous: Int[Array, "b a p"]) -> Float[Array, "b a p d"]:
    """Returns the logits given the text's previous tokens (target ids); unchanged without a Markov head."""
    if head.config.markov is None:
        return slots.logits
    batch, blocks, depth = previous.shape
    state, by_slot = head.path_state((batch, blocks), slots.out.dtype), []
    for k in range(depth):
        slot = BlockOutput(*(part[:, :, k] for part in slots))
        logits, state = head.edge_logits(slot, previous[:, :, k], state)
        by_slot.append(logits)
    return jnp.stack(by_slot, axis=2)


def confidence_loss(
    head: DFlash, slots: BlockOutput, previous: Int[Array, "b a p"], accepted: Float[Array, "b a p"]
) -> Float[Array, "b a p"]:
    """Returns the loss of the confidence head at each position, in nats.

    Args:
        accepted: acceptance rate of the drafted token, without gradient.
    """
    batch, blocks, depth = previous.shape
    rows = BlockOutput(*(part.reshape(batch, blocks * depth, -1) for part in slots))
    logits = head.confidence_logits(rows, previous.reshape(batch, -1)).reshape(previous.shape)
    accepted = jax.lax.stop_gradient(accepted)
    return jax.nn.softplus(logits) - accepted * logits


def selector_loss(
    head: DFlash, slots: BlockOutput, previous: Int[Array, "b a p"], following: Int[Array, "b a p"]
) -> tuple[Float[Array, "b a p"], Bool[Array, "b a p"]]:
    """Returns the loss of the selector at each position, in nats, and whether the text's token was a candidate.

    A text's token that is not a candidate replaces the last one, as in speculators.

    Args:
        following: the text's tokens (draft ids); the loss is meaningless where it is -1.
    """
    candidates = head.candidates(jax.lax.stop_gradient(slots.logits))
    present = jnp.any(candidates == following[..., None], axis=-1)
    last = jnp.where(present, candidates[..., -1], jnp.maximum(following, 0))
    candidates = jnp.concatenate([candidates[..., :-1], last[..., None]], axis=-1)
    state = head.path_state(previous.shape, slots.out.dtype)
    logits, _ = head.edge_logits(slots, previous, state, candidates)
    true_logit = jnp.sum(jnp.where(candidates == following[..., None], logits, 0.0), axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - true_logit, present


def choices(head: DFlash, slots: BlockOutput, previous: Int[Array, "b a p"]) -> Int[Array, "b a p"]:
    """Returns the selector's choice at each position given the text's previous token (draft ids), as for a chain."""
    slots = jax.lax.stop_gradient(slots)
    candidates = head.candidates(slots.logits)
    logits, _ = head.edge_logits(slots, previous, head.path_state(previous.shape, slots.out.dtype), candidates)
    return jnp.take_along_axis(candidates, argmax(logits)[..., None], axis=-1)[..., 0]
