"""Static sizes and modes that the programs of a batch are compiled for."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Drafter
from eagle_jax.loading.model import Model
from eagle_jax.requests.options import mode_of, options_for, seeds_for
from eagle_jax.requests.request import Request, fit_request, requests_for
from eagle_jax.scheduling.sizes import chunk_tokens, slots_for_tree

OWN_STOP_IDS = 8  # that a request to an engine may have besides the model's


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """Static sizes and modes of a batch.

    Attributes:
        rows: number of answers that are decoded together.
        slots: tokens that a row's caches hold.
        mode: how its rows may draw, and what may be recorded of their tokens.
        logprobs: what to record for each token: 0 nothing, 1 its log-probability, 2 also the likeliest tokens.
        stop_ids: how many stop tokens a row may have.
    """

    rows: int
    slots: int
    mode: Sampling
    logprobs: int
    stop_ids: int


def shape_for(model: Model, drafter: Drafter, requests: Sequence[Request], rows: int) -> BatchShape:
    """Returns the shape of a batch that holds any `rows` of these requests at a time."""
    return BatchShape(
        rows=rows,
        slots=slots_for(model, drafter, requests),
        mode=mode_of(request.options for request in requests),
        logprobs=max(request.options.logprobs + bool(request.options.top_logprobs) for request in requests),
        stop_ids=max(1, *(len(stop_ids(model, request)) for request in requests)),
    )


def shape_for_any(model: Model, rows: int, slots: int) -> BatchShape:
    """Returns the shape of a batch that holds any `rows` requests at a time."""
    return BatchShape(
        rows=rows,
        slots=slots,
        mode=Sampling(sampled=True, filtered=True),
        logprobs=2,
        stop_ids=len(model.stop_ids) + OWN_STOP_IDS,
    )


def slots_for(model: Model, drafter: Drafter, requests: Sequence[Request]) -> int:
    """Returns the number of cache slots for the longest of the requests."""
    longest_prompt = max(len(request.prompt) for request in requests)
    return slots_to_hold(drafter, longest_prompt, max(token_limit(model, request) for request in requests))


def slots_to_hold(drafter: Drafter, prompt: int, tokens: int) -> int:
    """Returns the number of cache slots for prompts of up to `prompt` tokens, `tokens` together with their answers."""
    return slots_for_tree(drafter.shape.depth, prompt, tokens, chunk_tokens())


def stop_ids(model: Model, request: Request) -> tuple[int, ...]:
    """Returns tokens that end a request's answer."""
    model_ids = () if request.options.ignore_eos else model.stop_ids
    return (*model_ids, *(id_ for id_ in dict.fromkeys(request.options.stop_token_ids) if id_ not in model_ids))


def requests_that_fit(
    model: Model, prompts: Sequence[Any], max_new_tokens: int | None, seed: Any, max_tokens: int, **values: Any
) -> list[Request]:
    """Returns requests for answers of `max_new_tokens` at most, or as long as there is room in `max_tokens`."""
    longest = 1 if max_new_tokens is None else max_new_tokens
    options = options_for(len(prompts), max_new_tokens=longest, **values)
    requests = requests_for(model, list(prompts), options, seeds_for(seed, len(prompts)))
    for request in requests:
        refuse_many_stop_ids(model, request)
    return [fit_request(request, max_tokens, fill=max_new_tokens is None) for request in requests]


def refuse_many_stop_ids(model: Model, request: Request) -> None:
    """Refuses a request with more stop tokens than a batch has room for that others have begun."""
    if len(stop_ids(model, request)) > len(model.stop_ids) + OWN_STOP_IDS:
        raise ValueError(
            f"stop_token_ids and stop name {len(request.options.stop_token_ids)} tokens; this engine has room for "
            f"{OWN_STOP_IDS} in addition to the model's own, so give no more"
        )


def token_limit(model: Model, request: Request) -> int:
    """Returns the number of tokens of prompt and answer together at which an answer ends."""
    return min(len(request.prompt) + request.options.max_new_tokens, model.context)
