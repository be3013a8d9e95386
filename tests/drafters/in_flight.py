"""Decoding in the middle of answers, for tests of what drafters keep and propose."""

import jax.numpy as jnp
from batches import padded, params_of, settings_of

from eagle_jax.decoding import sampling
from eagle_jax.decoding.sampling import GREEDY
from eagle_jax.drafters.base import Drafter, View
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import BatchParams, DecodeState
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY


def view_of(state: DecodeState, temperature: float, depth: int) -> View:
    """What a drafter of this depth sees next, if both rows draw at this temperature."""
    settings = settings_of(2, temperature, seeds=[5, 6])
    positions = state.length[:, None] + 1 + jnp.arange(depth + 1, dtype=jnp.int32)[None]
    noise = sampling.noise(settings, positions, TINY.vocab_size) if temperature else None
    return View(tokens=state.tokens, length=state.length, noise=noise, settings=settings)


def prefilled(
    target: LM, drafter: Drafter, prompts: list[list[int]], *, chunk: int, slots: int
) -> tuple[BatchParams, DecodeState]:
    """Two prompts, read; greedy."""
    request = params_of(list(map(len, prompts)), 40, seeds=[5, 6])
    tokens = padded(prompts, slots + 8)
    state = compiled_prefill()(target, drafter, request, tokens, mode=GREEDY, slots=slots, chunk=chunk, logprobs=False)
    return request, state


def after_steps(
    target: LM, drafter: Drafter, prompts: list[list[int]], steps: int, *, chunk: int = 8, slots: int = 80
) -> DecodeState:
    """The prompts, read, and so many steps later: caches have rows of prompts and of accepted paths."""
    request, state = prefilled(target, drafter, prompts, chunk=chunk, slots=slots)
    return compiled_advance()(target, drafter, request, state, jnp.int32(steps), mode=GREEDY)
