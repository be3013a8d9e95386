"""The requests of a row, and the output line made from their answers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eagle_jax.chat.prompts import Chat
from eagle_jax.jobs import openai
from eagle_jax.jobs.rows import Defaults, RejectedRow, Row, sentence
from eagle_jax.loading.model import Model
from eagle_jax.protocols.base import AnswerFormats, PendingResponse, ResponseFormat
from eagle_jax.protocols.calls import Call
from eagle_jax.protocols.chat_answers import ChatAnswers
from eagle_jax.requests.options import Options, seeds_for, stop_strings
from eagle_jax.requests.processing import check_processing
from eagle_jax.requests.request import NO_OUTPUT, Request, requests_for, with_form
from eagle_jax.requests.results import Result
from eagle_jax.requests.ticket import Ticket
from eagle_jax.scheduling.row import Row as SchedulerRow
from eagle_jax.scheduling.row import result_of
from eagle_jax.scheduling.scoring import prompt_logprobs, requests_to_score

REQUEST_ERRORS = (ValueError, TypeError, OverflowError)  # raised for invalid requests


@dataclasses.dataclass
class PendingRow:
    """A row whose answers are not complete.

    Attributes:
        row: the row.
        response_format: format of the response; None for rows in our own format.
        answers: parser of the answers.
        response: the pending response, with a ticket for each request.
        num_missing: number of missing answers.
    """

    row: Row
    response_format: ResponseFormat | None
    answers: ChatAnswers
    response: PendingResponse
    num_missing: int

    @property
    def requests(self) -> list[Request]:
        """The requests to generate answers for, in the order of the tickets."""
        return [ticket.request for ticket in self.response.tickets] if self.response.call.generates_answer else []

    def score(self, model: Model) -> None:
        """Computes requested prompt log-probabilities, one row at a time, so that they do not depend on the batch."""
        for ticket in self.response.scores:
            top = ticket.request.options.top_logprobs
            scored = prompt_logprobs(model, ticket.request.prompt, top_logprobs=top)
            empty_result = result_of(SchedulerRow(ticket.request), ticket.tokenizer, 0)
            ticket.update(NO_OUTPUT, dataclasses.replace(empty_result, prompt_logprobs=scored))

    def add_result(self, index: int, result: Result) -> None:
        """Stores the result of one of the requests."""
        self.response.tickets[index].update(NO_OUTPUT, result)
        self.num_missing -= 1

    def record(self, token_ids: bool) -> dict[str, Any]:
        """Returns the output line. It has no times, so that every run writes the same."""
        tickets = self.response.tickets
        results = [ticket.result(0.0) for ticket in tickets]
        stats = [_stats_of(ticket.request, result) for ticket, result in zip(tickets, results, strict=True)]
        ids = [{"token_ids": result.token_ids} if token_ids else {} for result in results]
        if self.response_format is None:
            return {"id": self.row.id} | self._content(results[0], ids[0]) | stats[0]
        body = self.response_format.content(self.response, results)
        for choice, row_stats, token_id_fields in zip(body.get("choices", [body]), stats, ids, strict=True):
            choice["eagle"] = row_stats | token_id_fields
        return openai.response_line(self.row, body)

    def _content(self, result: Result, ids: dict[str, Any]) -> dict[str, Any]:
        """Returns an answer's text, reasoning and tool calls if there are any, finish reason and usage."""
        message = self.answers.message(self.response, 0, result)
        body = {"text": message["content"] or ""}
        body |= {name: message[name] for name in ("reasoning_content", "tool_calls") if name in message}
        usage = {"prompt_tokens": result.prompt_tokens, "completion_tokens": len(result.token_ids)}
        return body | ids | {"finish_reason": self.answers.finish_reason(0, result.finish_reason), "usage": usage}


def make_pending_row(model: Model, row: Row, defaults: Defaults) -> PendingRow | RejectedRow:
    """Makes the requests of a row, or rejects the row."""
    try:
        return _make_pending_row(model, row, defaults)
    except REQUEST_ERRORS as error:
        return rejected_row(row, error)


def rejected_row(row: Row, error: Exception) -> RejectedRow:
    """Returns the rejected row with the error message."""
    message = (
        sentence(error)
        if row.response_format is None
        else row.response_format.with_request_field_names(sentence(error))
    )
    return RejectedRow(row.number, row.id, message, row.response_format is not None)


def _make_pending_row(model: Model, row: Row, defaults: Defaults) -> PendingRow:
    response_format, answers, call = prepare_call(row, model.tokenizer)
    top = call.prompt_top_logprobs
    scoring_requests = [] if top is None else requests_to_score(model, call.prompts, top, model.context)
    requests = [request for request in scoring_requests for _ in range(call.samples)]
    if call.generates_answer:
        options, seeds = sampling_options(row, call, defaults, model.tokenizer)
        unconstrained = requests_for(model, call.prompts, [options] * len(call.prompts), seeds, call.samples)
        requests = [with_form(model, request) for request in unconstrained]
    tickets = _tickets(model, requests)
    score_tickets = _tickets(model, scoring_requests) if call.generates_answer else tickets[:: call.samples]
    response = response_for(row, call, response_format, tickets, score_tickets)
    return PendingRow(row, response_format, answers, response, len(requests) if call.generates_answer else 0)


def prepare_call(row: Row, tokenizer: Any) -> tuple[ResponseFormat | None, ChatAnswers, Call]:
    """Returns a row's response format, answer parser, and call for a model with this tokenizer. Raises `FieldError`."""
    response_format, answers = row.response_format() if row.response_format else None, ChatAnswers()
    if response_format is not None:
        return response_format, answers, response_format.prepare(row.call, tokenizer, AnswerFormats())
    if not isinstance(row.call.prompts[0], Chat):
        return response_format, answers, row.call
    return response_format, answers, answers.prepare(row.call, tokenizer, AnswerFormats())


def sampling_options(row: Row, call: Call, defaults: Defaults, tokenizer: Any) -> tuple[Options, list[int]]:
    """Returns the sampling options of a row, and a seed per prompt. Raises ValueError and TypeError."""
    options = dict(call.options)
    seeds = seeds_for(options.pop("seed", _seed(defaults.seed, row.number)), len(call.prompts))
    options.pop("cache_salt", None)  # batch jobs share no cache with others
    values = defaults.values | {"logprobs": False} | check_processing(options)
    del values["seed"]
    values["stop"] = stop_strings(values["stop"] or None, tokenizer)
    return Options(**values), seeds


def response_for(
    row: Row, call: Call, response_format: ResponseFormat | None, tickets: Sequence[Ticket], scores: Sequence[Ticket]
) -> PendingResponse:
    """Returns the pending response of a row, with an id that is the same in every run."""
    id_ = f"{response_format.prefix}-{row.number}" if response_format else str(row.number)
    return PendingResponse(id=id_, created=0, name=call.model, call=call, tickets=tickets, scores=scores)


def error_record(row: RejectedRow) -> dict[str, Any]:
    """Returns the output line of a rejected row."""
    return openai.error_line(row) if row.is_openai else {"id": row.id, "error": row.error}


def _tickets(model: Model, requests: Sequence[Request]) -> list[Ticket]:
    return [Ticket(request, model.tokenizer, lambda ticket: None) for request in requests]


def _seed(seed: int, number: int) -> int:
    """Derives a row's own seed, so that equal prompts get different samples."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _stats_of(request: Request, result: Result) -> dict[str, Any]:
    mean = result.stats.mean_accepted_length
    stats = {"steps": result.stats.steps, "mean_accepted_length": None if math.isnan(mean) else round(mean, 4)}
    return {"seed": request.seed, "stats": stats}
