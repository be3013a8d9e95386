"""What the parts of DSpark's and DFlash 2's heads learn that tie the tokens of a block together.

All of them are given the text's own token before a slot, not one that was drafted (teacher forcing):

    Markov head (DSpark)          the slots' logits, which the losses of `dflash_loss` are of
    confidence head (DSpark)      a = sum min(p, q), how often the slot's token would be accepted: binary cross-entropy
    selector (DFlash 2)           the text's token among the slot's best ones: cross-entropy

(arXiv:2607.05147, section 3; z-lab/dflash.) Losses are per slot.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.sharding import argmax


def teacher_forced_logits(head: DFlash, slots: BlockOutput, previous: Int[Array, "b a p"]) -> Float[Array, "b a p d"]:
    """Returns the slots' logits given the text's tokens before them (target ids); unchanged without a Markov head."""
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
    """Returns the loss of the confidence in each slot, in nats.

    Args:
        accepted: how often its token would be accepted. No gradient goes into it.
    """
    batch, blocks, depth = previous.shape
    rows = BlockOutput(*(part.reshape(batch, blocks * depth, -1) for part in slots))
    logits = head.confidence_logits(rows, previous.reshape(batch, -1)).reshape(previous.shape)
    accepted = jax.lax.stop_gradient(accepted)
    return jax.nn.softplus(logits) - accepted * logits


def selector_loss(
    head: DFlash, slots: BlockOutput, previous: Int[Array, "b a p"], following: Int[Array, "b a p"]
) -> tuple[Float[Array, "b a p"], Bool[Array, "b a p"]]:
    """Returns the loss of the selector's choice at each slot, in nats, and whether the right one was a candidate.

    If the text's token is not among them, it replaces the last, as speculators trains.

    Args:
        following: the text's tokens (draft ids); where it is -1, the number is of no use.
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
    """Returns the selector's choice at each slot given the text's token before (draft ids), as a chain is drafted."""
    slots = jax.lax.stop_gradient(slots)
    candidates = head.candidates(slots.logits)
    logits, _ = head.edge_logits(slots, previous, head.path_state(previous.shape, slots.out.dtype), candidates)
    return jnp.take_along_axis(candidates, argmax(logits)[..., None], axis=-1)[..., 0]
