"""Traces the draft trees of single steps, times the parts of a step, and shows how close a sampled token was."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.chat.prompts import Prompt
from eagle_jax.decoding import sampling
from eagle_jax.decoding.sampling import Sampling, Settings
from eagle_jax.decoding.tree import TreeShape
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.timing import DraftOnly, VerifyOnly
from eagle_jax.inspection.start import Start, seconds_per_step
from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import drafter_for
from eagle_jax.models.lm import causal
from eagle_jax.models.target import Target
from eagle_jax.requests.options import Options, seeds_for, settings_of
from eagle_jax.requests.request import Request, requests_for
from eagle_jax.requests.results import Step
from eagle_jax.scheduling import offline, programs
from eagle_jax.scheduling.recorder import Recorder
from eagle_jax.scheduling.sizes import bucket
from eagle_jax.sharding import Sharding, sharded
from eagle_jax.workarounds import loop_options

UNFILTERED: dict[str, Any] = dict(top_k=0, top_p=1.0, min_p=0.0)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds of the parts of one step, measured in the decoding loop: minima of alternating runs.

    Attributes:
        draft: drafting without verification, less a step of plain decoding.
        verify: a step without drafting over a tree of this size, including sampling and committing.
        step: the whole step.
    """

    draft: float
    verify: float
    step: float

    @property
    def rest(self) -> float:
        """The remaining time, mostly the drafter's observing of committed tokens."""
        return max(self.step - self.draft - self.verify, 0.0)


def tree_shape(model: Model, drafter: str | Drafter = "auto", tree: Any = "auto") -> TreeShape:
    """Returns nodes and depth of the trees that `generate` would draft. Raises ValueError as `generate` does."""
    return drafter_for(model, drafter, tree).shape


def trace(
    model: Model,
    prompt: Prompt,
    *,
    steps: int = 3,
    drafter: str | Drafter = "auto",
    tree: Any = "auto",
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    **filters: Any,
) -> list[Step]:
    """Returns the first steps of the answer to a prompt.

    Args:
        steps: maximum number of steps.
        filters: top_k, top_p and min_p; these and the other arguments are as in `generate`.

    Raises:
        ValueError, TypeError: as `generate` does.

    Example:
        >>> import eagle_jax
        >>> from eagle_jax import api
        >>> step = api.trace(eagle_jax.load(), "Tom has", steps=1, tree=(8, 2, 2))[0]
        >>> len(step.tokens), step.accepted[0]
        (8, 0)
    """
    recorder = Recorder(drafter_for(model, drafter, tree))
    request = _request(model, prompt, max_new_tokens, temperature, filters, seed)
    trees: Mapping[int, Step] = {}
    for event in offline.run(model, [request], 1, lambda _: recorder, steps=1):
        trees = event.output.trees
        if len(trees) >= steps:
            break
    return [trees[step] for step in sorted(trees)][:steps]


def time_parts(
    model: Model,
    prompt: Prompt,
    *,
    drafter: str | Drafter = "auto",
    tree: Any = "auto",
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    **filters: Any,
) -> Parts:
    """Times drafting, verification and a whole step at the beginning of the answer to a prompt.

    Arguments are as in `trace`; caches are made for an answer of `max_new_tokens` tokens.
    """
    request = _request(model, prompt, max_new_tokens, temperature, filters, seed)
    whole = drafter_for(model, drafter, tree)
    drafters = {"plain": Plain(), "draft": DraftOnly(whole), "verify": VerifyOnly(whole.shape), "step": whole}
    seconds = seconds_per_step(Start(model, whole, [request]), drafters)
    return Parts(max(seconds["draft"] - seconds["plain"], 0.0), seconds["verify"], seconds["step"])


def closest_draws(
    model: Model, token_ids: list[int], *, count: int = 2, temperature: float = 0.0, seed: int = 0, **filters: Any
) -> list[tuple[int, float]]:
    """Returns the `count` best tokens after `token_ids`, with their scores.

    Scores are logits, or at temperature > 0 the values that sampling compares: scaled logits (largest 0) plus noise.
    """
    options = _options(1, temperature, filters)
    settings = settings_of([options], seeds_for(seed, 1), [0])
    size = bucket(len(token_ids))
    padded = np.zeros((1, size), np.int32)
    padded[0, : len(token_ids)] = token_ids
    arguments = (model.target, jnp.asarray(padded), jnp.asarray([len(token_ids)], jnp.int32))
    scores, _ = programs.call(_compiled(_scores), *arguments, settings, mode=options.mode, sharding=model.sharding)
    values, tokens = jax.lax.top_k(scores[0], count)
    return list(zip(tokens.tolist(), values.tolist(), strict=True))


def _request(
    model: Model, prompt: Prompt, max_new_tokens: int, temperature: float, filters: dict[str, Any], seed: int
) -> Request:
    options = _options(max_new_tokens, temperature, filters)
    [request] = requests_for(model, [prompt], [options], seeds_for(seed, 1))
    return request


def _options(max_new_tokens: int, temperature: float, filters: dict[str, Any]) -> Options:
    filters = UNFILTERED | filters
    return Options(max_new_tokens=max_new_tokens, temperature=temperature, stop=(), logprobs=False, **filters)


def _scores(
    target: Target,
    tokens: Int[Array, "b t"],
    length: Int[Array, "b"],
    settings: Settings,
    *,
    mode: Sampling,
    sharding: Sharding | None,
) -> Float[Array, "b v"]:
    """Returns the scores that sampling compares after the last of the `length` tokens."""
    hidden = target.forward(tokens, *causal(*tokens.shape), target.empty_cache(len(tokens), 1)).hidden
    logits = target.logits(jnp.take_along_axis(hidden, length[:, None, None] - 1, axis=1))
    if mode.sampled:
        noise = sampling.noise(settings, length[:, None], target.config.vocab_size)
        logits = sampling.warp(logits, settings, mode) + noise
    return logits[:, 0]


@functools.cache
def _compiled(function: Any) -> Any:
    return jax.jit(sharded(function), static_argnames=("mode", "sharding"), compiler_options=loop_options())
