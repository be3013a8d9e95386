"""Handles requests to the endpoints that generate text, in one response or as a stream."""

import asyncio
import contextlib
import dataclasses
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eagle_jax.api import Chunk, EngineError, Result, Ticket, achunks
from eagle_jax.fields import FieldError
from eagle_jax.protocols.base import PendingResponse, ResponseFormat
from eagle_jax.protocols.calls import Call
from eagle_jax.serving.body import read_json
from eagle_jax.serving.errors import ErrorResponse, JsonResponse, log
from eagle_jax.serving.service import RequestTickets, Service

T = TypeVar("T")
Parse = Callable[[dict[str, Any], bool], Call]  # (body, ignore_unknown) -> Call

GRACE_SECONDS = 30.0  # for a client to read the rest after its answers were cancelled
MAX_HEADER_CHARS = 2000
IGNORED_HEADER = "x-eagle-jax-ignored"  # names the ignored fields of a request


def endpoint(
    make_format: Callable[[], ResponseFormat], parse: Parse
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Returns a handler that parses requests with `parse` and responds in the format of `make_format()`."""

    async def respond(request: Request) -> Response:
        response_format = make_format()
        try:
            return await handle(request, response_format, parse)
        except FieldError as error:
            raise FieldError(
                response_format.with_request_field_names(str(error)),
                response_format.with_request_field_names(error.param),
            ) from None
        except ErrorResponse as error:
            error.message = response_format.with_request_field_names(error.message)
            raise

    return respond


async def handle(request: Request, response_format: ResponseFormat, parse: Parse) -> Response:
    """Returns the response to one request. Raises `ErrorResponse` and `FieldError`."""
    service: Service = request.app.state.service
    limits = service.limits
    call = parse(await read_json(request, limits.body_bytes, limits.body_seconds), service.ignore_unknown)
    name = service.model_name(call.model)
    engine = service.engines[name]
    call = dataclasses.replace(call, options=response_format.defaults | call.options)
    call = response_format.prepare(call, engine.model.tokenizer, service.formats)
    request_tickets = await service.submit(engine, call)
    pending = PendingResponse(
        id=f"{response_format.prefix}-{request.state.id}",
        created=int(time.time()),
        name=name,
        call=call,
        tickets=request_tickets.tickets,
        scores=request_tickets.scores,
    )
    headers, all_tickets = ignored_header(call.ignored), request_tickets.all_tickets
    if call.stream:
        events = _events(pending, response_format, request_tickets)
        return EventStream(events, all_tickets, limits.answer_seconds, headers)
    results = await _while_connected(_results(request_tickets), request.receive, all_tickets, limits.answer_seconds)
    # detokenizing thousands of prompt tokens takes 0.1 s, so it runs in a thread and does not block the event loop
    if request_tickets.scores:
        return JsonResponse(await asyncio.to_thread(response_format.content, pending, results), headers=headers)
    return JsonResponse(response_format.content(pending, results), headers=headers)


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Returns the header that names the ignored fields of a request; empty if there are none."""
    if not names:
        return {}
    value = ", ".join(urllib.parse.quote(name, safe=" []()$@+*;:,./") for name in names)
    return {IGNORED_HEADER: value if len(value) <= MAX_HEADER_CHARS else value[: MAX_HEADER_CHARS - 3] + "..."}


class EventStream(Response):
    """Server-sent events. If the client disconnects or stops reading, its requests are cancelled."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        tickets: Sequence[Ticket],
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events, self._tickets, self._seconds = events, tickets, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with contextlib.suppress(ClientDisconnect):
            await _while_connected(self._write(send), receive, self._tickets, self._seconds)

    async def _write(self, send: Send) -> None:
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _results(tickets: RequestTickets) -> list[Result]:
    try:
        await _wait_for_scores(tickets)
        results = [await ticket.aresult() for ticket in tickets.tickets]
    except EngineError as error:
        raise ErrorResponse(500, str(error)) from None
    if all(map(_never_started, tickets.tickets)):
        raise _too_busy()
    return results


async def _wait_for_scores(tickets: RequestTickets) -> None:
    """Waits for the log-probabilities of the prompts. Raises `ErrorResponse`."""
    scores = [await ticket.aresult() for ticket in tickets.scores]
    if any(result.prompt_logprobs is None for result in scores):
        raise _too_busy()


def _never_started(ticket: Ticket) -> bool:
    """Returns whether the request was cancelled while it was queued."""
    return ticket.over and ticket.cancelled and ticket.waited is None


def _too_busy() -> ErrorResponse:
    message = "the server was too busy to start this answer in time; ask again later"
    return ErrorResponse(503, message, code="too_busy", headers={"retry-after": "10"})


async def _while_connected(
    work: Coroutine[Any, Any, T], receive: Receive, tickets: Sequence[Ticket], seconds: float
) -> T:
    """Awaits `work` until it is done or the client disconnects; cancels the tickets after `seconds`.

    Raises:
        ClientDisconnect: the client disconnected or does not read.
    """
    task, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(receive))
    tasks: list[asyncio.Future[Any]] = [task, disconnected]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not disconnected.done():
            for ticket in tickets:
                ticket.cancel()
            await asyncio.wait(tasks, timeout=GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect()
        return task.result()
    finally:
        for ticket in tickets:
            ticket.cancel()
        task.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _events(
    pending: PendingResponse, response_format: ResponseFormat, tickets: RequestTickets
) -> AsyncIterator[bytes]:
    """Yields the events of a stream; an error becomes the last event."""
    try:
        await _wait_for_scores(tickets)
        async for event in response_format.events(pending, _chunks(pending)):
            yield event
        return
    except ErrorResponse as error:
        response = error
    except EngineError as error:
        response = ErrorResponse(500, str(error))
    except Exception as error:
        log.exception("a stream failed")
        response = ErrorResponse(500, f"the server failed while generating this answer ({type(error).__name__})")
    yield response_format.error(response.status, response.body)


async def _chunks(pending: PendingResponse) -> AsyncIterator[Chunk]:
    """Yields the chunks of a request's answers. Raises `ErrorResponse` if none was started in time."""
    async for chunk in achunks(pending.tickets, by_step=pending.call.reports_steps):
        if chunk.result is not None and all(map(_never_started, pending.tickets)):
            raise _too_busy()
        yield chunk
