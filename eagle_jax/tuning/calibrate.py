"""Measures how often a head's draft tokens are accepted, for `calibration.json` in its folder."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from eagle_jax.chat.prompts import Prompt
from eagle_jax.decoding.calibration import AS_DRAFTED, Prior
from eagle_jax.drafters.base import Drafter
from eagle_jax.loading.calibration import write_prior
from eagle_jax.loading.folders import folders_of
from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import drafter_for
from eagle_jax.methods.registry import METHODS, method_of
from eagle_jax.requests.options import Options
from eagle_jax.requests.request import requests_for
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import shape_for
from eagle_jax.sharding import to_host
from eagle_jax.tuning.tune import built_in_questions

ROWS = 8  # answers at a time
NODES = 16  # nodes of a tree: enough for some at each depth
STEPS = 16  # steps between two polls of the device
NO_HEAD = "there is nothing to calibrate: the model has no head; load it with one"
STRENGTH = 16.0  # weight of the prior at each knot, in draft tokens; it decides at knots with few draft tokens


def calibrate(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Prior:
    """Decodes the prompts, greedily and at temperature 1, and returns acceptance rates of the head's draft tokens.

    Args:
        model: from `load`, with a head.
        prompts: a few dozen prompts, typical for the head's use.
        max_new_tokens: maximum length of each answer.
        progress: called with (answers done, answers in all).

    Raises:
        ValueError: the model has no head, or there are no prompts; or as `generate` does for prompts.
    """
    if model.head is None:
        raise ValueError(NO_HEAD)
    if not prompts:
        raise ValueError("no prompts to calibrate with; give at least one")
    name = method_of(model, "auto")
    trees = METHODS[name].trees
    drafter = drafter_for(model, name, "published" if trees is None else trees(model, False, NODES))
    done, total = 0, 2 * len(prompts)
    tables = []
    for temperature, drafted_prior in ((0.0, AS_DRAFTED.greedy), (1.0, AS_DRAFTED.sampled)):
        num_drafted, num_accepted = np.zeros((2, *drafted_prior.shape), np.float64)
        arguments = prompts, max_new_tokens, temperature, lambda state: state.counts
        for rows, counts in after_answers(model, drafter, *arguments):
            num_drafted += np.asarray(counts.guessed, np.float64).sum(axis=0)
            num_accepted += np.asarray(counts.accepted, np.float64).sum(axis=0)
            done += rows
            if progress is not None:
                progress(done, total)
        tables.append(fit_rates(num_drafted, num_accepted, drafted_prior))
    return Prior(*tables)


def calibrate_head(
    model: Model,
    target: str | Path | None,
    head: str | Path | None,
    prompts: Sequence[Prompt] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Measures the head's acceptance rates, writes them to its folder, and returns the model that uses them.

    Args:
        model: loaded from `target` and `head`, as `load` takes them.
        prompts: as in `calibrate`; None takes a few questions.

    Raises:
        ValueError: the model has no head; or as `generate` does for prompts.
        OSError: the folder cannot be written.
    """
    _, folder = folders_of(target, head)
    if folder is None:
        raise ValueError(NO_HEAD)
    prior = calibrate(model, built_in_questions(model) if prompts is None else prompts, progress=progress)
    write_prior(folder, prior)
    return dataclasses.replace(model, calibration=prior)


def after_answers(
    model: Model,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    temperature: float,
    read: Callable[[Any], Any],
) -> Iterator[tuple[int, Any]]:
    """Decodes the prompts in batches; yields each batch's size and `read` of the drafter's final state, on the host."""
    options = Options(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, stop=(), logprobs=False
    )
    requests = requests_for(model, list(prompts), [options] * len(prompts), list(range(len(prompts))))
    for start in range(0, len(requests), ROWS):
        chunk = requests[start : start + ROWS]
        batch = Batch(model, drafter, shape_for(model, drafter, requests, len(chunk)), chunk)
        while not all(row.done for row in batch.rows):
            batch.decode(STEPS)
        state = to_host(read(batch.state.draft))
        batch.free()
        yield len(chunk), state


def fit_rates(
    num_drafted: Float[np.ndarray, "d k"], num_accepted: Float[np.ndarray, "d k"], prior: Float[np.ndarray, "d k"]
) -> Float[np.ndarray, "d k"]:
    """Fits acceptance rates to the counts that do not decrease with the head's probabilities (isotonic regression).

    Args:
        prior: the head's probabilities, with the weight of `STRENGTH` draft tokens at each knot.
    """
    weight = num_drafted + STRENGTH
    mean = (num_accepted + STRENGTH * prior) / weight
    return np.stack([_isotonic(*row) for row in zip(mean, weight, strict=True)]).astype(np.float32)


def _isotonic(values: Float[np.ndarray, "k"], weights: Float[np.ndarray, "k"]) -> Float[np.ndarray, "k"]:
    """Returns the closest non-decreasing values by weighted squares, pooling adjacent violators (Ayer et al. 1955)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, and number of values
    for value, weight in zip(values, weights, strict=True):
        block = (float(value), float(weight), 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, last_weight, size = blocks.pop()
            total = last_weight + block[1]
            block = ((mean * last_weight + block[0] * block[1]) / total, total, size + block[2])
        blocks.append(block)
    return np.concatenate([np.full(size, mean) for mean, _, size in blocks])
