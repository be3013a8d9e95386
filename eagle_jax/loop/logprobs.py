"""The log-probabilities that are recorded of drawn tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding.rows import append
from eagle_jax.loop.state import DecodeState, TopTokens
from eagle_jax.ops import top_k


def record_logprobs(
    state: DecodeState,
    path: Float[Array, "b r v"],
    tokens: Int[Array, "b r"],
    at: Int[Array, "b"],
    top_logprobs: Bool[Array | np.ndarray, "b"] | None,
    active: Bool[Array, "b"],
) -> tuple[Float[Array, "b t"] | None, TopTokens | None]:
    """What is recorded of the drawn tokens: `tokens[i]`, drawn from logits `path[i]`, is at position `at + i`.

    It is log softmax(logits): temperature and filters left out, as OpenAI-style logprobs are. The likeliest tokens are
    searched for where an `active` row asks for them, which is found out while the program runs: one program serves
    batches with and without such rows.
    """
    if state.logprobs is None:
        return None, None
    normalizer = jax.nn.logsumexp(path, axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(path, jnp.maximum(tokens, 0)[:, :, None], axis=2)
    logprobs, top = append(state.logprobs, (chosen - normalizer)[:, :, 0], at), state.top
    if top is not None and top_logprobs is not None:
        shape = *tokens.shape, top.ids.shape[2]
        nothing = jnp.zeros(shape, path.dtype), jnp.zeros(shape, jnp.int32)
        is_asked = jnp.any(active & top_logprobs)
        values, ids = jax.lax.cond(is_asked, lambda path: top_k(path, shape[2]), lambda _: nothing, path)
        top = TopTokens(append(top.ids, ids, at), append(top.logprobs, values - normalizer, at))
    return logprobs, top
