"""Requests as the arrays that a batch's programs take."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np

from eagle_jax.decoding.processor import LogitsParams
from eagle_jax.drafters.base import Drafter
from eagle_jax.loading.model import Model
from eagle_jax.loop.state import BatchParams
from eagle_jax.requests.options import settings_of
from eagle_jax.requests.request import DUMMY_REQUEST, Request
from eagle_jax.scheduling.batch_shape import BatchShape, stop_ids, token_limit
from eagle_jax.scheduling.logits_arrays import processor_of
from eagle_jax.scheduling.sizes import padded_batch_size
from eagle_jax.structured.table_sizes import TableSizes

T = TypeVar("T")


def batch_inputs(
    model: Model, drafter: Drafter, requests: Sequence[Request], shape: BatchShape, tables: Sequence[TableSizes] = ()
) -> tuple[BatchParams, jax.Array | np.ndarray]:
    """Returns parameters and prompts of a batch, padded to `padded_batch_size` rows. On one device they stay numpy
    arrays, which a program takes in a fraction of the time that making JAX arrays takes. `tables` is as in `Batch`.
    """
    rows = padded_batch_size(model, len(requests))
    padded = [*requests, *[DUMMY_REQUEST] * (rows - len(requests))]
    limit = np.array([token_limit(model, request) for request in padded], np.int32)
    limit[[request is DUMMY_REQUEST for request in padded]] = 0  # done before they begin

    tokens = np.zeros((rows, shape.slots + drafter.shape.depth + 1), np.int32)
    ends = np.full((rows, shape.stop_ids), -1, np.int32)
    for row, request in enumerate(padded):
        tokens[row, : len(request.prompt)] = request.prompt
        ids = stop_ids(model, request)
        ends[row, : len(ids)] = ids
    params = BatchParams(
        settings=settings_of(
            [request.options for request in padded],
            [request.seed for request in padded],
            [request.sample for request in padded],
        ),
        prompt_length=np.array([len(request.prompt) for request in padded], np.int32),
        limit=limit,
        stop_ids=ends,
        processor=processor_for(model, padded, rows, tables),
        top_logprobs=np.array([request.options.top_logprobs > 0 for request in padded]),
    )
    return sharded_arrays(model, (params, tokens))


def processor_for(
    model: Model, requests: Sequence[Request], rows: int, tables: Sequence[TableSizes]
) -> LogitsParams | None:
    """Returns the logits parameters of requests, on the host, padded to `rows`; None if no request has any."""
    padded = [*requests, *[DUMMY_REQUEST] * (rows - len(requests))]
    logits_rows = [(request.options, request.bad_words, request.automaton) for request in padded]
    return processor_of(logits_rows, model.target.config.vocab_size, tables)


def sharded_arrays(model: Model, tree: T) -> T:
    """Returns the arrays of a batch, over the model's devices."""
    return tree if model.sharding is None else model.sharding.put(tree, model.sharding.state)


def placed(model: Model, tree: T) -> T:
    """Returns arrays that many calls take, on the model's devices."""
    return jax.device_put(tree) if model.sharding is None else sharded_arrays(model, tree)
