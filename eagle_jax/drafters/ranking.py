"""Scores of drafted tokens: the drafter's distribution, with the noise that the target will sample with."""

from collections.abc import Callable

from jaxtyping import Array, Float

from eagle_jax.decoding import sampling
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.drafters.base import View


def scores(
    logits: Float[Array, "b n d"],
    depth: int,
    view: View,
    mode: Sampling,
    coupled: bool,
    *,
    drafted_part: Callable[[Array], Array] | None = None,
) -> Scores:
    """Returns scores of the tokens below nodes at `depth`: log-probabilities, which a tree policy adds up along paths.

    Args:
        coupled: at temperature > 0, with the noise of their position (common random numbers); off, as if all requests
            were greedy.
        drafted_part: picks the drafted tokens' values from values over the target's vocabulary.
    """
    if view.adjustment is not None:
        adjustment = view.adjustment if drafted_part is None else view.adjustment.map(drafted_part)
        logits = adjustment.apply(logits)
    if mode.sampled and not coupled:
        return sampling.scores(logits, None, view.settings, sampling.GREEDY)
    noise = view.noise_at(depth)
    if noise is not None and drafted_part is not None:
        noise = drafted_part(noise)
    return sampling.scores(logits, noise, view.settings, mode)


def check_depth(depth: int, heads: int, method: str) -> None:
    """Refuses a tree that is deeper than there are heads to draft it."""
    if depth > heads:
        raise ValueError(
            f"a tree of depth {depth} for {heads} {method} heads, which draft {heads} tokens ahead; choose a tree no "
            "deeper than that"
        )
