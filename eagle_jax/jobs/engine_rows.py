"""Rows of batch jobs that an engine answers, for programs that bring the rows and keep the answers themselves."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from eagle_jax.chat.prompts import TooLong
from eagle_jax.jobs.lines import Line
from eagle_jax.jobs.pending_row import (
    UNANSWERABLE,
    PendingRow,
    drawn,
    error_record,
    pending_response,
    prepared,
    refused,
)
from eagle_jax.jobs.rows import Defaults, Refused, Row, read, sentence
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
    """Answers lines of a batch job's input side by side: for each the record that `Job` writes, in the same order.

    A line that cannot be answered, and one at which the engine fails, gets its error instead. `stats` alone may differ
    from a job's: how many tokens an engine guesses follows its load. Calls may overlap, so that the batch stays full.

    Args:
        engine: its queue has to have a place for every answer that is asked for.
        lines: the seed of a row that states none follows from `defaults.seed` and the line's number.
        defaults, token_ids, ignore_unknown: as in `Job`.

    Raises:
        EngineClosed, EngineError: the engine takes no requests any more.
        QueueFull: there is no room in the queue.
    """
    begun: list[PendingRow | Refused] = []
    try:
        begun += (_begin(engine, read(line, ignore_unknown), defaults) for line in lines)
        return [await _record(engine, one, token_ids) for one in begun]
    finally:  # nobody waits for what is left after an error
        for one in begun:
            if isinstance(one, PendingRow):
                _cancel([*one.response.tickets, *one.response.scores])


def _begin(engine: Engine, row: Row | Refused, defaults: Defaults) -> PendingRow | Refused:
    """Queues what a row asks for, or refuses it."""
    if isinstance(row, Refused):
        return row
    scores: list[Ticket] = []
    try:
        response_format, answers, call = prepared(row, engine.model.tokenizer)
        scores = (
            []
            if call.prompt_top_logprobs is None
            else engine.submit_scores(call.prompts, top_logprobs=call.prompt_top_logprobs)
        )
        tickets = [ticket for ticket in scores for _ in range(call.samples)]
        if call.generates_answer:
            options, seeds = drawn(row, call, defaults, engine.model.tokenizer)
            tickets = _submit(engine, call.prompts, range(call.samples), options, seeds)
    except UNANSWERABLE as error:
        _cancel(scores)
        return refused(row, error)
    except Exception:
        _cancel(scores)
        raise
    return PendingRow(row, response_format, answers, pending_response(row, call, response_format, tickets, scores), 0)


def _submit(
    engine: Engine, prompts: Sequence[Any], samples: Sequence[int], options: Options, seeds: Sequence[int]
) -> list[Ticket]:
    """Submits the samples of each prompt. As in a job, an answer also ends where the model's context does."""
    tickets: list[Ticket] = []
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    values["logit_bias"] = dict(options.logit_bias)  # pairs would be taken for values of several prompts
    try:
        for prompt, seed in zip(prompts, seeds, strict=True):
            one = dict(values, samples=samples, seed=seed)
            try:
                tickets += engine.submit_all([prompt], **one)
            except TooLong:
                if engine.max_tokens < engine.model.context:
                    raise
                tickets += engine.submit_all([prompt], **one | {"max_new_tokens": None})
    except Exception:
        _cancel(tickets)
        raise
    return tickets


async def _record(engine: Engine, row: PendingRow | Refused, token_ids: bool) -> dict[str, Any]:
    if isinstance(row, Refused):
        return error_record(row)
    try:
        for ticket in (*row.response.scores, *row.response.tickets):
            await ticket.aresult()
    except EngineError as error:
        if not engine.alive:
            raise
        return error_record(Refused(row.row.number, row.row.id, sentence(error), row.response_format is not None))
    return row.record(token_ids)


def _cancel(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        if not ticket.over:
            ticket.cancel()
