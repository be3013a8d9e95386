"""Answers rows of batch jobs with an engine, for programs that read the rows and store the answers themselves."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from eagle_jax.chat.prompts import TooLong
from eagle_jax.jobs.lines import Line
from eagle_jax.jobs.pending_row import (
    REQUEST_ERRORS,
    PendingRow,
    error_record,
    prepare_call,
    rejected_row,
    response_for,
    sampling_options,
)
from eagle_jax.jobs.rows import Defaults, RejectedRow, Row, read, sentence
from eagle_jax.requests.options import Options
from eagle_jax.requests.ticket import EngineError, Ticket
from eagle_jax.scheduling.engine import Engine


async def answer_lines(
    engine: Engine,
    lines: Sequence[Line],
    *,
    defaults: Defaults = Defaults(),
    token_ids: bool = False,
    ignore_unknown: bool = False,
) -> list[dict[str, Any]]:
    """Answers lines of a batch job's input concurrently; returns the record that `Job` writes for each, in order.

    An invalid line, or one for which the engine fails, gets an error record. Only `stats` may differ from a job's,
    since the tree size of an engine depends on its load. Calls may overlap, so that the batch stays full.

    Args:
        engine: its queue must have room for all answers.
        lines: a row without a seed gets one derived from `defaults.seed` and the line's number.
        defaults, token_ids, ignore_unknown: as in `Job`.

    Raises:
        EngineClosed, EngineError: the engine accepts no more requests.
        QueueFull: the queue has no room.
    """
    rows: list[PendingRow | RejectedRow] = []
    try:
        rows += (_begin(engine, read(line, ignore_unknown), defaults) for line in lines)
        return [await _record(engine, row, token_ids) for row in rows]
    finally:  # after an error, nobody waits for the remaining answers
        for row in rows:
            if isinstance(row, PendingRow):
                _cancel([*row.response.tickets, *row.response.scores])


def _begin(engine: Engine, row: Row | RejectedRow, defaults: Defaults) -> PendingRow | RejectedRow:
    """Submits the requests of a row, or rejects the row."""
    if isinstance(row, RejectedRow):
        return row
    scores: list[Ticket] = []
    try:
        response_format, answers, call = prepare_call(row, engine.model.tokenizer)
        scores = (
            []
            if call.prompt_top_logprobs is None
            else engine.submit_scores(call.prompts, top_logprobs=call.prompt_top_logprobs)
        )
        tickets = [ticket for ticket in scores for _ in range(call.samples)]
        if call.generates_answer:
            options, seeds = sampling_options(row, call, defaults, engine.model.tokenizer)
            tickets = _submit(engine, call.prompts, range(call.samples), options, seeds)
    except REQUEST_ERRORS as error:
        _cancel(scores)
        return rejected_row(row, error)
    except Exception:
        _cancel(scores)
        raise
    return PendingRow(row, response_format, answers, response_for(row, call, response_format, tickets, scores), 0)


def _submit(
    engine: Engine, prompts: Sequence[Any], samples: Sequence[int], options: Options, seeds: Sequence[int]
) -> list[Ticket]:
    """Submits the samples of each prompt. As in a job, an answer also ends at the end of the model's context."""
    tickets: list[Ticket] = []
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    values["logit_bias"] = dict(options.logit_bias)  # a list of pairs would mean one value per prompt
    try:
        for prompt, seed in zip(prompts, seeds, strict=True):
            request_values = dict(values, samples=samples, seed=seed)
            try:
                tickets += engine.submit_all([prompt], **request_values)
            except TooLong:
                if engine.max_tokens < engine.model.context:
                    raise
                tickets += engine.submit_all([prompt], **request_values | {"max_new_tokens": None})
    except Exception:
        _cancel(tickets)
        raise
    return tickets


async def _record(engine: Engine, row: PendingRow | RejectedRow, token_ids: bool) -> dict[str, Any]:
    if isinstance(row, RejectedRow):
        return error_record(row)
    try:
        for ticket in (*row.response.scores, *row.response.tickets):
            await ticket.aresult()
    except EngineError as error:
        if not engine.alive:
            raise
        return error_record(RejectedRow(row.row.number, row.row.id, sentence(error), row.response_format is not None))
    return row.record(token_ids)


def _cancel(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        if not ticket.over:
            ticket.cancel()
