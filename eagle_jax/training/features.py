"""Features of the training text: the frozen target's hidden states at every token."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.models.lm import LM


def hidden_states(target: LM, tokens: Int[Array, "b n"], taps: tuple[int, ...] = ()) -> Float[Array, "b n f"]:
    """Returns hidden states after the final norm, then the residual streams entering layers `taps`, side by side."""
    output = target.causal(tokens, taps)
    return jnp.concatenate([output.hidden, *output.taps], axis=-1)
