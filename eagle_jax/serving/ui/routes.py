"""The routes of the page: its files, and the endpoints that it calls."""

import asyncio
import importlib.resources
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from eagle_jax.api import METHODS, Engine, EngineError, Ticket, achunks
from eagle_jax.fields import Fields, text, wrong
from eagle_jax.protocols.base import sse_event
from eagle_jax.protocols.calls import Call, chat_call
from eagle_jax.serving.body import read_json
from eagle_jax.serving.endpoint import EventStream
from eagle_jax.serving.errors import ErrorResponse, JsonResponse, log
from eagle_jax.serving.service import Service, openai_defaults
from eagle_jax.serving.ui.engines import MAX_NODES, DraftMethod, Engines, Tree, tree_argument
from eagle_jax.serving.ui.race import race
from eagle_jax.serving.ui.step_events import StepEvents, summary

FILES = importlib.resources.files("eagle_jax.serving.ui") / "files"
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The page loads nothing from other origins, and runs no script that a model may write.
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
SUGGESTIONS = (
    "Sara has 10 cookies. She eats 3 of them and bakes 12 more. How many cookies does she have?",
    "Tim works 6 hours a day and earns $12 an hour. How much does he earn in a week of 5 days?",
    "A shirt costs $20. A hat costs half as much. How much do a shirt and a hat cost together?",
)


class Page:
    """The page of one model. Its `routes` are for `create_app` and respect its limits and API key.

    Args:
        engine: the engine of the default draft method; its trees are drawn if it records them, live if it polls after
            every step (`steps=1, record=True`). Engines for other methods share its model.
        drafter, tree: the default draft method, which `engine` has.
        name: displayed name of the model.
        device: displayed name of the device.
    """

    def __init__(self, engine: Engine, *, drafter: str = "auto", tree: Any = "auto", name: str, device: str):
        self._model, self._engine, self._racing = engine.model, engine, asyncio.Lock()
        if self._model.tokenizer is None:
            raise ValueError("the page shows text, but the model's folder has no tokenizer; add its tokenizer files")
        default_method = DraftMethod(drafter, tree if isinstance(tree, str) else tuple(tree))
        self._engines = Engines(self._model, first={default_method: engine}, rows=1, max_tokens=engine.max_tokens)
        method = self._engines.method(*default_method)
        self._about = {
            "model": name,
            "device": device,
            "max_tokens": engine.max_tokens,
            "drafters": [
                {"name": name, "title": registered.title, "trees": registered.trees is not None}
                for name, registered in METHODS.items()
                if registered.title and registered.has(self._model)
            ],
            "drafter": None if method.drafter == "none" else method.drafter,
            "tree": tree_argument(method),
            "suggestions": SUGGESTIONS,
        }

    @property
    def routes(self) -> list[BaseRoute]:
        files = {file.name: file.read_bytes() for file in FILES.iterdir()}
        return [
            Route("/", _redirect_to_page, methods=["GET"]),
            Route("/ui", _file("index.html", files["index.html"]), methods=["GET"]),
            *(Route(f"/ui/{name}", _file(name, content), methods=["GET"]) for name, content in files.items()),
            Route("/ui/about", self.about, methods=["GET"]),
            Route("/ui/chat", self.chat, methods=["POST"]),
            Route("/ui/race", self.race, methods=["POST"]),
        ]

    async def about(self, request: Request) -> Response:
        """Returns the facts about the model that the page shows."""
        _check_access(request)
        return JsonResponse(self._about)

    async def chat(self, request: Request) -> Response:
        """Streams an answer, step by step."""
        method, call = await self._parse_request(request)
        tickets: list[Ticket] = []
        events = self._answer(request.app.state.service, method, call, tickets)
        return EventStream(_event_bytes(events), tickets, request.app.state.service.limits.answer_seconds)

    async def race(self, request: Request) -> Response:
        """Streams an answer with a drafter and the same answer without one."""
        method, call = await self._parse_request(request)
        if self._racing.locked():
            raise ErrorResponse(429, "another race is running; start this one when it is over")
        await self._racing.acquire()  # does not suspend, since the lock is free
        seconds = request.app.state.service.limits.answer_seconds
        return _LockedEventStream(self._racing, _event_bytes(self._race(method, call, seconds)), seconds)

    async def _parse_request(self, request: Request) -> tuple[DraftMethod, Call]:
        """Parses a request of the page: an OpenAI chat request with a drafter and a tree."""
        _check_access(request)
        limits = request.app.state.service.limits
        body = await read_json(request, limits.body_bytes, limits.body_seconds)
        fields = Fields({name: body.pop(name, None) for name in ("drafter", "tree")}, ignore_unknown=False)
        default_tree: Tree = "auto"
        method = self._engines.method(fields.take("drafter", text, "auto"), fields.take("tree", _tree, default_tree))
        call = chat_call(body)
        if call.samples > 1:
            raise wrong("n", f"n={call.samples}; the page shows one answer at a time, so leave it out")
        if not self._model.tokenizer.chat_template:
            call.prompts[:] = [call.prompts[0].messages[-1]["content"]]
        return method, call

    async def _answer(
        self, service: Service, method: DraftMethod, call: Call, tickets: list[Ticket]
    ) -> AsyncIterator[Any]:
        if method not in self._engines:
            yield {"preparing": True}
        async with self._engines.acquire(method) as engine:
            tickets += (await service.submit(engine, call)).all_tickets
            step_events = StepEvents(self._model.tokenizer, tickets[0].request.prompt)
            async for chunk in achunks(tickets, by_step=True):
                if chunk.token_ids:
                    yield step_events.event(chunk)
                if chunk.result is not None:
                    yield {"done": summary(chunk.result)}

    async def _race(self, method: DraftMethod, call: Call, seconds: float) -> AsyncIterator[Any]:
        deadline = time.monotonic() + seconds
        yield {"preparing": True}
        options = openai_defaults() | call.options
        prompt_and_limit = call.prompts[0], options.get("max_new_tokens")
        options["max_new_tokens"] = await asyncio.to_thread(self._engine.room_for, *prompt_and_limit)
        events = race(self._model, call.prompts[0], drafter=method.drafter, tree=tree_argument(method), **options)
        while (update := await asyncio.to_thread(next, events, None)) is not None:
            yield update
            if time.monotonic() > deadline and "verdict" not in update:
                raise ErrorResponse(503, f"the race exceeded the limit of {seconds:g} seconds; ask for shorter answers")


class _LockedEventStream(EventStream):
    """A stream that releases a lock when it ends, even if it was never read."""

    def __init__(self, lock: asyncio.Lock, events: AsyncIterator[bytes], seconds: float):
        super().__init__(events, [], seconds)
        self._lock = lock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._lock.release()


async def _event_bytes(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Yields server-sent events; an error becomes the last event."""
    try:
        async for update in events:
            yield sse_event(update)
    except ErrorResponse as error:
        yield sse_event(error.body)
    except EngineError as error:
        yield sse_event(ErrorResponse(500, str(error)).body)
    except (ValueError, TypeError) as error:
        yield sse_event(ErrorResponse(400, str(error)).body)
    except Exception as error:
        log.exception("the page's request failed")
        yield sse_event(ErrorResponse(500, f"the server failed while making this answer ({type(error).__name__})").body)


def _check_access(request: Request) -> None:
    """Raises `ErrorResponse` if the API key is wrong or the server is shutting down."""
    service: Service = request.app.state.service
    if not service.is_authorized(request.headers.get("authorization", "")):
        raise ErrorResponse(401, "the API key is missing or wrong", code="invalid_api_key")
    if service.draining:
        raise ErrorResponse(503, "the server is shutting down and accepts no more requests", code="unavailable")


def _tree(name: str, value: Any) -> Tree:
    """Checks the field `tree`: the name of a tree, or whole numbers."""
    if isinstance(value, str) and len(value) <= 40:
        return value
    numbers = value if isinstance(value, list) and len(value) <= MAX_NODES else []
    if not numbers or not all(type(number) is int and -1 <= number <= MAX_NODES for number in numbers):
        raise wrong(name, f"{name} is neither a word nor up to {MAX_NODES} whole numbers from -1 to {MAX_NODES}")
    return tuple(numbers)


def _file(name: str, content: bytes) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        return Response(content, media_type=KINDS[name.rpartition(".")[2]], headers=HEADERS)

    return answer


async def _redirect_to_page(request: Request) -> Response:
    return RedirectResponse("ui")
