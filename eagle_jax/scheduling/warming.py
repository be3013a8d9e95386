"""Compiling before the first request: what `warm_up` does."""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, Unpack

import jax

from eagle_jax.checks import is_whole_number, whole_number
from eagle_jax.drafters.base import Drafter
from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import choose
from eagle_jax.requests.options import Options, options_for
from eagle_jax.requests.processing import Processing
from eagle_jax.requests.request import Request
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import BatchShape, shape_for
from eagle_jax.scheduling.generate import drafter_for_requests
from eagle_jax.scheduling.sizes import padded_batch_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warmed:
    """A batch shape whose programs are compiled.

    Attributes:
        batch_size: answers decoded together.
        slots: tokens of prompt, answer and draft that there is room for.
        sampled: whether its answers may be drawn; else they are greedy.
        nodes: nodes of its draft trees; 1 is plain decoding.
        programs: number of programs that were compiled or fetched from disk; 0 if all were there.
        seconds: time that this took.
    """

    batch_size: int
    slots: int
    sampled: bool
    nodes: int
    programs: int
    seconds: float


def warm_up(
    model: Model,
    *,
    prompt_lengths: int | Iterable[int] = 128,
    max_new_tokens: int = 256,
    batch_size: int | Iterable[int] = 1,
    temperature: float | Iterable[float] = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    drafter: str | Drafter = "auto",
    tree: Any = "auto",
    logprobs: bool = False,
    top_logprobs: int = 0,
    **processing: Unpack[Processing],
) -> list[Warmed]:
    """Compiles what `generate` and `stream` will need for such requests, so that the first of them does not wait.

    Nothing is answered: one token is read as the prompt of every row, and the loop is run with nothing to do. Memory is
    taken as for real requests, and what does not fit fails here. An `api.Engine` does the same for itself.

    Args:
        model: from `load`.
        prompt_lengths: tokens of the prompts to come: one number, or several; sizes come in few classes, so
            `range(1, 1000)` is a handful of programs.
        max_new_tokens: as in `generate`; so are `drafter`, `tree`, `logprobs` and `top_logprobs`, of which only matters
            whether it is 0.
        batch_size: answers decoded together, one number or several: of a list of prompts as many as it has, and
            `generate`'s `batch_size` at most. Prompts beyond that, which wait for a place, are provided for. Of prompts
            of several size classes fewer may belong to one of them: give 1, 2, 4, .. up to it.
        temperature: 0 for greedy answers, 1 or another for sampled ones, `(0.0, 1.0)` for both.
        top_k, top_p, min_p: which of them filter sampled answers, as in `generate`; their values do not matter.
        processing: as in `generate`; only matters whether there is any, and whether it is structured output.

    Returns:
        The size classes that are ready now.

    Raises:
        ValueError, TypeError: as `generate` does; also for an impossible number of tokens or rows.

    Example:
        >>> import eagle_jax
        >>> model = eagle_jax.load()
        >>> [ready] = eagle_jax.warm_up(model, prompt_lengths=30, max_new_tokens=32)
        >>> result = eagle_jax.generate(model, "Tom has 3 apples.", max_new_tokens=32)
        >>> result.stats.compile_seconds
        0.0
    """
    sizes = [padded_batch_size(model, whole_number("batch_size", size, 1)) for size in _as_list(batch_size)]
    lengths = [_length(model, length) for length in _as_list(prompt_lengths)]
    values: dict[str, Any] = dict(max_new_tokens=max_new_tokens, top_k=top_k, top_p=top_p, min_p=min_p, **processing)
    values |= dict(logprobs=logprobs, top_logprobs=top_logprobs)
    options_by_temperature = [options_for(1, temperature=each, **values)[0] for each in _as_list(temperature)]

    choice = choose(model, drafter, tree)
    ready: dict[Any, Warmed] = {}
    for rows, options, length in itertools.product(sizes, options_by_temperature, lengths):
        requests = [Request(index=0, prompt=[0] * length, options=options, seed=0, sample=0)] * rows
        chosen = drafter_for_requests(choice, requests)
        shape = shape_for(model, chosen, requests, rows)
        key = shape, jax.tree.structure(chosen)  # which the drafter's tree is part of
        if key not in ready:
            ready[key] = _warmed(model, chosen, shape, options)
    return list(ready.values())


def _warmed(model: Model, drafter: Drafter, shape: BatchShape, options: Options) -> Warmed:
    """Runs everything once that a batch runs: prefill, the loop, and a request in the slot of a finished one."""
    before = programs.compiled()
    request = Request(index=0, prompt=[0], options=options, seed=0, sample=0)
    batch = Batch(model, drafter, shape, [request] * shape.rows)
    seconds = batch.rows[0].compile_seconds + batch.warm_up()
    batch.admit([0], [request])
    seconds += batch.rows[0].compile_seconds
    return Warmed(
        batch_size=shape.rows,
        slots=shape.slots,
        sampled=shape.mode.sampled,
        nodes=drafter.shape.nodes,
        programs=programs.compiled() - before,
        seconds=seconds,
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Iterable) else [value]


def _length(model: Model, length: Any) -> int:
    if is_whole_number(length) and 0 < length < model.context:
        return int(length)
    raise ValueError(
        f"a prompt of {length!r} tokens; expected a whole number from 1 to {model.context - 1}, one less than the "
        "model's context"
    )
