"""Records the log-probabilities of drawn tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding.rows import append
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.loop.state import DecodeState, TopTokens
from eagle_jax.ops import top_k


def record_logprobs(
    state: DecodeState,
    path: Float[Array, "b r v"],
    tokens: Int[Array, "b r"],
    at: Int[Array, "b"],
    top_logprobs: Bool[Array | np.ndarray, "b"] | None,
    active: Bool[Array, "b"],
    mode: Sampling,
) -> tuple[Float[Array, "b t"] | None, TopTokens | None]:
    """Records log-probabilities of the drawn tokens: `tokens[i]`, drawn from logits `path[i]`, is at position `at + i`.

    It is log softmax(logits): temperature and filters left out, as OpenAI-style logprobs are. The likeliest tokens are
    searched for where an `active` row asks for them, which a `mixed` program finds out while it runs.
    """
    if state.logprobs is None or not mode.logprobs:
        return state.logprobs, state.top
    normalizer = jax.nn.logsumexp(path, axis=-1, keepdims=True)
    token_logits = jnp.take_along_axis(path, jnp.maximum(tokens, 0)[:, :, None], axis=2)
    logprobs, top = append(state.logprobs, (token_logits - normalizer)[:, :, 0], at), state.top
    if top is not None and top_logprobs is not None and mode.logprobs > 1:
        shape = *tokens.shape, top.ids.shape[2]
        nothing = jnp.zeros(shape, path.dtype), jnp.zeros(shape, jnp.int32)
        values, ids = mode.where_asked(
            lambda: jnp.any(active & top_logprobs), lambda: top_k(path, shape[2]), lambda: nothing
        )
        top = TopTokens(append(top.ids, ids, at), append(top.logprobs, values - normalizer, at))
    return logprobs, top
