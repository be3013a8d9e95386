"""Scores of drafted tokens: the best of rows over a vocabulary."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.struct import pytree


@pytree
class Scores:
    """`log_softmax(logits)`, worked out for the best tokens alone."""

    logits: Float[Array, "*rows v"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.logits.shape

    def __getitem__(self, rows: object) -> "Scores":
        return Scores(self.logits[rows])

    def of_all(self) -> Float[Array, "*rows v"]:
        """Returns the scores of all tokens."""
        return jax.nn.log_softmax(self.logits, axis=-1)

    def best(self, count: int) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
        """Returns the `count` best of each row, best first, and their tokens; of equal logits the lower token is first.

        A row with nan or infinity has no distribution: all its scores are -inf, and the tokens may be any.
        """
        return ops.top_k(self.logits, count, logit_scale=1.0)


def best(scores: Scores | Float[Array, "*rows v"], count: int) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """Works as `Scores.best`; of log-probabilities themselves what exceeds 0 is taken as 0."""
    if isinstance(scores, Scores):
        return scores.best(count)
    return ops.top_k(jnp.where(jnp.isnan(scores), -jnp.inf, jnp.minimum(scores, 0.0)), count)
