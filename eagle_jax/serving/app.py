"""The application: what answers at which address."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

import eagle_jax
from eagle_jax.api import Engine
from eagle_jax.fields import FieldError
from eagle_jax.protocols.anthropic import Messages, messages_call
from eagle_jax.protocols.base import AnswerFormats
from eagle_jax.protocols.calls import chat_call, completion_call
from eagle_jax.protocols.chat import Chat
from eagle_jax.protocols.completions import Completion
from eagle_jax.protocols.responses import Responses
from eagle_jax.protocols.responses_call import responses_call
from eagle_jax.serving.endpoint import endpoint
from eagle_jax.serving.errors import (
    ErrorResponse,
    Json,
    on_error_response,
    on_gone,
    on_http,
    on_unexpected,
    on_wrong_field,
)
from eagle_jax.serving.service import Limits, Service, models
from eagle_jax.serving.tokenize import count_tokens, detokenize, tokenize

ENDPOINTS = (
    *("/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens"),
    *("/tokenize", "/detokenize", "/version", "/health", "/metrics"),
)
HANDLERS: Mapping[Any, ExceptionHandler] = {
    ErrorResponse: on_error_response,
    FieldError: on_wrong_field,
    HTTPException: on_http,
    ClientDisconnect: on_gone,
}
BEHIND_KEY = ("/metrics", "/tokenize", "/detokenize")


def create_app(
    engines: Mapping[str, Engine],
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    routes: Sequence[BaseRoute] = (),
    ignore_unknown: bool = False,
    origins: Sequence[str] = (),
    generation_config: bool = False,
    tool_format: str | None = None,
    reasoning_format: str | None = None,
) -> Starlette:
    """Returns an ASGI application that answers OpenAI's requests.

    Args:
        engines: by the names that requests call models; the first is meant when a request names none.
        limits: what one request may take.
        api_key: what `Authorization: Bearer`, or `x-api-key`, has to bring, except to /health and /version; None lets
            everyone in.
        routes: pages of your own, such as `starlette.routing.Route("/", page)`; they come after the server's. They find
            the engines in `request.app.state.service`.
        ignore_unknown: ignores unknown fields of requests; a header of the response names them.
        generation_config: answers requests that do not say how tokens are drawn as a model's `generation_config.json`
            recommends, instead of at OpenAI's temperature of 1.
        tool_format: how the models write calls of functions, one of `api.FORMATS`; None is what their chat templates
            teach.
        reasoning_format: how the models mark reasoning, one of `api.REASONING_FORMATS`; "none" leaves it in the text,
            None is what their chat templates have.
        origins: addresses of web pages that may ask too (CORS), such as `https://example.com`; "*" is all.
    """
    formats = AnswerFormats(tool_format, reasoning_format)
    service = Service(engines, limits or Limits(), api_key, ignore_unknown, generation_config, formats)
    pages = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"]
    )
    app = Starlette(
        routes=[*_api_routes(), *routes],
        # Starlette would answer unexpected errors outside of it, where they are neither numbered nor counted.
        middleware=[
            *([pages] if origins else []),
            Middleware(AuthMiddleware, service=service),
            Middleware(ExceptionMiddleware, handlers={Exception: on_unexpected}),
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False  # an address is right or wrong
    app.state.service = service
    return app


def _api_routes() -> list[BaseRoute]:
    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", one_model, methods=["GET"]),
        Route("/v1/completions", endpoint(Completion, completion_call), methods=["POST"]),
        Route("/v1/chat/completions", endpoint(Chat, chat_call), methods=["POST"]),
        Route("/v1/responses", endpoint(Responses, responses_call), methods=["POST"]),
        Route("/v1/messages", endpoint(Messages, messages_call), methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/version", version, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


async def list_models(request: Request) -> Response:
    return Json(models(request.app.state.service))


async def one_model(request: Request) -> Response:
    service: Service = request.app.state.service
    name = service.name_of(request.path_params["name"])
    return Json(next(model for model in models(service)["data"] if model["id"] == name))


async def health(request: Request) -> Response:
    """Responds 200 while requests are taken, else 503."""
    service: Service = request.app.state.service
    loads = {name: engine.load for name, engine in service.engines.items()}
    status = "ok" if service.alive else "draining" if service.draining else "failed"
    models = {name: {"slots": load.rows, "busy": load.busy, "waiting": load.waiting} for name, load in loads.items()}
    return Json({"status": status, "models": models}, status_code=200 if service.alive else 503)


async def version(request: Request) -> Response:
    return Json({"version": eagle_jax.__version__})


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.text(), headers={"content-type": service.metrics.content_type})


class AuthMiddleware:
    """Every request passes here: it gets a number, shows its key, and is counted."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = secrets.token_hex(12)
        scope.setdefault("state", {})["id"] = number
        address = _address(scope)
        path = address if address in ENDPOINTS else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.metrics.responded(path, message["status"])
                message["headers"] = [*message.get("headers", []), (b"x-request-id", number.encode())]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal.response(address)(scope, receive, counted)
            return
        with self._service.open_request():
            await self._app(scope, receive, counted)

    def _refusal(self, scope: Scope) -> ErrorResponse | None:
        address, headers = _address(scope), dict(scope["headers"])
        asks = address.startswith("/v1/")
        if asks or address.startswith(BEHIND_KEY):  # a route also takes a line's end after its address
            key = headers.get(b"x-api-key")  # Anthropic's clients send it so
            shown = headers.get(b"authorization", b"") if key is None else b"Bearer " + key
            if not self._service.knows(shown.decode("latin-1")):
                message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
                more = {"www-authenticate": "Bearer", "connection": "close"}
                return ErrorResponse(401, message, code="invalid_api_key", headers=more)
        if asks and scope["method"] == "POST" and self._service.draining:
            message = "the server is about to stop and takes no more requests; ask again in a while"
            return ErrorResponse(503, message, code="unavailable", headers={"retry-after": "10", "connection": "close"})
        return None


def _address(scope: Scope) -> str:
    """Returns the path that routes match, without the prefix of a mounted application or of a proxy."""
    path, root = scope["path"], scope.get("root_path", "")
    inside = root and (path == root or path.startswith(f"{root}/"))
    return path[len(root) :] if inside else path
