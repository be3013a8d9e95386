"""What each token makes of the next in DSpark's and DFlash 2's heads, in plain numpy, one token at a time."""

from typing import Any

import jax
import numpy as np

from eagle_jax.models.dflash import DFlash


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def start(head: DFlash) -> np.ndarray:
    """What a recurrent Markov head remembers above the first slot."""
    return np.zeros(0 if head.config.markov is None else head.config.markov.rank)


def edges(
    head: DFlash, h: np.ndarray, row: np.ndarray, before: int, state: np.ndarray, noise: Any = 0.0
) -> tuple[dict[int, float], np.ndarray]:
    """The logit of every token (draft id) that may follow the token `before`, and the state below it.

    Args:
        h, row: output of the slot and its logits.
        noise: over the draft vocabulary, added to all logits; a selector's candidates are the best without it.
    """
    p, noisy = jax.tree.map(np.asarray, head.params), row + noise
    if head.config.selector is not None:
        own = p["candidate_selector"]
        code = own["predecessor_codebook"][before] * (own["hidden_projection"]["weight"] @ h)
        best = np.argsort(-row, kind="stable")[: head.config.selector.top_k]
        return {int(b): float(noisy[b] + code @ own["successor_codebook"][b]) for b in best}, state
    if head.config.markov is None:
        return dict(enumerate(noisy.tolist())), state
    own = p["markov_head"]
    e = own["markov_w1"]["embedding"][before]
    u = e
    if head.config.markov.kind == "gated":
        u = e * sigmoid(own["gate_proj"]["weight"] @ np.concatenate([h, e]) + own["gate_proj"]["bias"])
    if head.config.markov.kind == "rnn":
        joint = own["joint_proj"]["weight"] @ np.concatenate([state, e, h]) + own["joint_proj"]["bias"]
        gate, candidate, read = np.split(joint, 3)
        u, state = np.tanh(read), sigmoid(gate) * state + (1 - sigmoid(gate)) * np.tanh(candidate)
    return dict(enumerate((noisy + own["markov_w2"]["weight"] @ u).tolist())), state


def confidence(head: DFlash, h: np.ndarray, before: int) -> float:
    """How probable it is that the token behind `before` is accepted."""
    p = jax.tree.map(np.asarray, head.params)
    if head.config.confidence.with_markov:
        h = np.concatenate([h, p["markov_head"]["markov_w1"]["embedding"][before]])
    own = p["confidence_head"]["proj"]
    return float(sigmoid(own["weight"][0] @ h + own["bias"][0]))
