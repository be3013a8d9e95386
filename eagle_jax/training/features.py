"""Features of the training text: the target's hidden states at every token."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.models.lm import LM


def hidden_states(target: LM, tokens: Int[Array, "b n"], taps: tuple[int, ...] = ()) -> Float[Array, "b n f"]:
    """Returns the hidden states after the final norm, concatenated with the residual streams entering layers `taps`."""
    output = target.causal(tokens, taps)
    return jnp.concatenate([output.hidden, *output.taps], axis=-1)
