"""Decoding in the middle of answers, for tests of what drafters keep and propose."""

import jax.numpy as jnp
import numpy as np

from eagle_jax.decoding import sampling
from eagle_jax.decoding.sampling import GREEDY
from eagle_jax.drafters.base import Drafter
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import BatchParams, DecodeState
from eagle_jax.models.lm import LM


def settings_at(temperature: float) -> sampling.Settings:
    """Of two rows."""
    return sampling.Settings(
        temperature=jnp.full(2, temperature, jnp.float32),
        top_k=jnp.zeros(2, jnp.int32),
        top_p=jnp.ones(2, jnp.float32),
        min_p=jnp.zeros(2, jnp.float32),
        key=sampling.request_keys([5, 6], [0, 0]),
    )


def prefilled(
    target: LM, drafter: Drafter, prompts: list[list[int]], *, chunk: int, slots: int
) -> tuple[BatchParams, DecodeState]:
    """Two prompts, read; greedy."""
    tokens = np.zeros((len(prompts), slots + 8), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    lengths = jnp.array([len(prompt) for prompt in prompts])
    request = BatchParams(
        settings=settings_at(0.0), prompt_length=lengths, limit=lengths + 40, stop_ids=jnp.full((len(lengths), 1), -1)
    )
    state = compiled_prefill()(
        target, drafter, request, jnp.asarray(tokens), mode=GREEDY, slots=slots, chunk=chunk, logprobs=False
    )
    return request, state


def after_steps(
    target: LM, drafter: Drafter, prompts: list[list[int]], steps: int, *, chunk: int = 8, slots: int = 80
) -> DecodeState:
    """The prompts, read, and so many steps later: caches have rows of prompts and of accepted paths."""
    request, state = prefilled(target, drafter, prompts, chunk=chunk, slots=slots)
    return compiled_advance()(target, drafter, request, state, jnp.int32(steps), mode=GREEDY)
