"""A drafter whose scores are calibrated by how often its guesses are accepted."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle_jax.decoding.calibration import AS_DRAFTED, Counts, Prior
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import CommittedRows, Drafter, View, Wrapper
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree

STRENGTH = 64.0  # number of a request's guesses at a knot that weighs as much as the prior


@pytree
class Counting:
    """A drafter's state, and the counts of each request's guesses."""

    state: Any
    counts: Counts


@pytree
class Calibrated(Wrapper):
    """Drafts with another drafter, and compares paths by their probability of being accepted.

    A request starts with the prior; its own guesses gain weight as they are counted.

    Attributes:
        greedy, sampled: prior probabilities at the knots (`decoding.calibration`), at temperature 0 and above.
    """

    greedy: Float[Array, "d k"]
    sampled: Float[Array, "d k"]

    @staticmethod
    def of(drafter: Drafter, prior: Prior | None = None) -> "Calibrated":
        """Wraps a drafter; without a prior its own probabilities are the prior."""
        prior_or_default = prior or AS_DRAFTED
        return Calibrated(drafter, jnp.asarray(prior_or_default.greedy), jnp.asarray(prior_or_default.sampled))

    def init(self, target: Target, batch: int, slots: int) -> Counting:
        return Counting(state=self.drafter.init(target, batch, slots), counts=Counts.none(batch))

    def observe(self, target: Target, state: Counting, observed: CommittedRows) -> Counting:
        counts, checked = state.counts, observed.checked
        if checked is not None and checked.tree.edges is not None:
            counts = counts.of_step(checked.tree, checked.draws, self.shape.depth, observed.count > 0)
        return Counting(state=self.drafter.observe(target, state.state, observed), counts=counts)

    def propose(self, target: Target, state: Counting, view: View, mode: Sampling) -> tuple[Tree, Counting]:
        is_greedy = jnp.asarray(view.settings.greedy)[:, None, None]
        prior = jnp.where(is_greedy, self.greedy[None], self.sampled[None])
        view = dataclasses.replace(view, calibration=state.counts.after(prior, STRENGTH))
        tree, inner = self.drafter.propose(target, state.state, view, mode)
        return tree, Counting(state=inner, counts=state.counts)
