"""Answers requests, in one response or as a stream, while the client stays connected."""

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
from eagle_jax.serving.errors import ErrorResponse, Json, log
from eagle_jax.serving.service import RequestTickets, Service

T = TypeVar("T")
Parse = Callable[[dict[str, Any], bool], Call]  # (body, ignore_unknown) -> Call

GRACE = 30.0  # seconds that a client has to read the rest after its answers were cancelled
MAX_HEADER_CHARS = 2000  # characters of the header that names ignored fields
IGNORED_HEADER = "x-eagle-jax-ignored"  # names the fields of a request that were ignored


def endpoint(
    make_format: Callable[[], ResponseFormat], parse: Parse
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Returns a handler that reads requests with `parse` and writes responses in one format."""

    async def respond(request: Request) -> Response:
        response_format = make_format()
        try:
            return await answer(request, response_format, parse)
        except FieldError as error:
            raise FieldError(
                response_format.with_request_field_names(str(error)),
                response_format.with_request_field_names(error.param),
            ) from None
        except ErrorResponse as refused:
            refused.message = response_format.with_request_field_names(refused.message)
            raise

    return respond


async def answer(request: Request, response_format: ResponseFormat, parse: Parse) -> Response:
    """Returns the response to one request. Raises `ErrorResponse`, and `FieldError`."""
    service: Service = request.app.state.service
    limits = service.limits
    call = parse(await read_json(request, limits.body_bytes, limits.body_seconds), service.ignore_unknown)
    name = service.name_of(call.model)
    engine = service.engines[name]
    call = dataclasses.replace(call, options=response_format.defaults | call.options)
    call = response_format.prepare(call, engine.model.tokenizer, service.formats)
    tickets = await service.submit(engine, call)
    pending = PendingResponse(
        id=f"{response_format.prefix}-{request.state.id}",
        created=int(time.time()),
        name=name,
        call=call,
        tickets=tickets.tickets,
        scores=tickets.scores,
    )
    headers = ignored_header(call.ignored)
    if call.stream:
        return EventStream(
            _events(pending, response_format, tickets), tickets.all_tickets, limits.answer_seconds, headers
        )
    results = await _while_connected(_all(tickets), request.receive, tickets.all_tickets, limits.answer_seconds)
    # decoding thousands of tokens to text takes 0.1 s: in a thread, so that the event loop goes on serving streams
    if tickets.scores:
        return Json(await asyncio.to_thread(response_format.content, pending, results), headers=headers)
    return Json(response_format.content(pending, results), headers=headers)


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Returns the header that names the fields of a request that were ignored; none if there were none."""
    if not names:
        return {}
    shown = ", ".join(urllib.parse.quote(name, safe=" []()$@+*;:,./") for name in names)
    return {IGNORED_HEADER: shown if len(shown) <= MAX_HEADER_CHARS else shown[: MAX_HEADER_CHARS - 3] + "..."}


class EventStream(Response):
    """Server-sent events. If the client stops reading, its answers are cancelled and their slots freed."""

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
        async for sent in self._events:
            await send({"type": "http.response.body", "body": sent, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _all(tickets: RequestTickets) -> list[Result]:
    try:
        await _wait_for_scores(tickets)
        results = [await ticket.aresult() for ticket in tickets.tickets]
    except EngineError as error:
        raise ErrorResponse(500, str(error)) from None
    if all(map(_never_begun, tickets.tickets)):
        raise _too_busy()
    return results


async def _wait_for_scores(tickets: RequestTickets) -> None:
    """Waits for the prompts' own log-probabilities, which every answer needs. Raises `ErrorResponse`."""
    scores = [await ticket.aresult() for ticket in tickets.scores]
    if any(result.prompt_logprobs is None for result in scores):
        raise _too_busy()


def _never_begun(ticket: Ticket) -> bool:
    """Returns whether the request was cancelled before it left the queue."""
    return ticket.over and ticket.cancelled and ticket.waited is None


def _too_busy() -> ErrorResponse:
    message = "the server was too busy to begin this answer in time; ask again later"
    return ErrorResponse(503, message, code="too_busy", headers={"retry-after": "10"})


async def _while_connected(
    work: Coroutine[Any, Any, T], receive: Receive, tickets: Sequence[Ticket], seconds: float
) -> T:
    """Awaits `work` until it is done or the client disconnects; after `seconds` cancels the tickets.

    Raises:
        ClientDisconnect: the client is gone, or does not read.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    both: list[asyncio.Future[Any]] = [working, gone]
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not gone.done():
            for ticket in tickets:
                ticket.cancel()
            await asyncio.wait(both, timeout=GRACE, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect()
        return working.result()
    finally:
        for ticket in tickets:
            ticket.cancel()
        for task in (working, gone):
            task.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _events(
    pending: PendingResponse, response_format: ResponseFormat, tickets: RequestTickets
) -> AsyncIterator[bytes]:
    """Yields the events of a stream; an error becomes its last event."""
    try:
        await _wait_for_scores(tickets)
        async for sent in response_format.events(pending, _chunks(pending)):
            yield sent
        return
    except ErrorResponse as error:
        refused = error
    except EngineError as error:
        refused = ErrorResponse(500, str(error))
    except Exception as error:
        log.exception("a stream failed")
        refused = ErrorResponse(500, f"the server failed while making this answer ({type(error).__name__})")
    yield response_format.error(refused.status, refused.body)


async def _chunks(pending: PendingResponse) -> AsyncIterator[Chunk]:
    """Yields the chunks of a request's answers. Raises `ErrorResponse` where none was begun in time."""
    async for chunk in achunks(pending.tickets, by_step=pending.call.reports_steps):
        if chunk.result is not None and all(map(_never_begun, pending.tickets)):
            raise _too_busy()
        yield chunk
