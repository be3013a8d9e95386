"""The ASGI application: routes, authentication, error handlers."""

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
    JsonResponse,
    on_disconnect,
    on_error_response,
    on_field_error,
    on_http_exception,
    on_unexpected,
)
from eagle_jax.serving.service import Limits, Service, models_body
from eagle_jax.serving.tokenize import count_tokens, detokenize, tokenize

ENDPOINTS = (
    *("/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens"),
    *("/tokenize", "/detokenize", "/version", "/health", "/metrics"),
)
HANDLERS: Mapping[Any, ExceptionHandler] = {
    ErrorResponse: on_error_response,
    FieldError: on_field_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_disconnect,
}
PROTECTED_PATHS = ("/metrics", "/tokenize", "/detokenize")


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
    """Returns an ASGI application that serves OpenAI's API.

    Args:
        engines: engines by model name; the first serves requests that name no model.
        limits: limits of one request.
        api_key: key that requests must send as `Authorization: Bearer` or `x-api-key`, except to /health and /version;
            None allows every request.
        routes: further routes, such as `starlette.routing.Route("/", page)`; `request.app.state.service` has the
            engines.
        ignore_unknown: ignore unknown fields of requests; a response header names them.
        generation_config: take default sampling options from the model's `generation_config.json` instead of OpenAI's
            temperature of 1.
        tool_format: format of tool calls, one of `api.FORMATS`; None detects it from the chat template.
        reasoning_format: format of reasoning, one of `api.REASONING_FORMATS`; "none" leaves reasoning in the text, None
            detects the format from the chat template.
        origins: origins of web pages that may send requests (CORS), such as `https://example.com`; "*" is all.
    """
    formats = AnswerFormats(tool_format, reasoning_format)
    service = Service(engines, limits or Limits(), api_key, ignore_unknown, generation_config, formats)
    pages = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"]
    )
    app = Starlette(
        routes=[*_api_routes(), *routes],
        # Starlette handles unexpected errors outside the middleware, where they get no request id and are not counted.
        middleware=[
            *([pages] if origins else []),
            Middleware(AuthMiddleware, service=service),
            Middleware(ExceptionMiddleware, handlers={Exception: on_unexpected}),
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _api_routes() -> list[BaseRoute]:
    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
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
    return JsonResponse(models_body(request.app.state.service))


async def get_model(request: Request) -> Response:
    service: Service = request.app.state.service
    name = service.model_name(request.path_params["name"])
    return JsonResponse(next(model for model in models_body(service)["data"] if model["id"] == name))


async def health(request: Request) -> Response:
    """Responds 200 while requests are accepted, else 503."""
    service: Service = request.app.state.service
    loads = {name: engine.load for name, engine in service.engines.items()}
    status = "ok" if service.alive else "draining" if service.draining else "failed"
    models = {name: {"slots": load.rows, "busy": load.busy, "waiting": load.waiting} for name, load in loads.items()}
    return JsonResponse({"status": status, "models": models}, status_code=200 if service.alive else 503)


async def version(request: Request) -> Response:
    return JsonResponse({"version": eagle_jax.__version__})


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.text(), headers={"content-type": service.metrics.content_type})


class AuthMiddleware:
    """Checks the API key of every request, gives it an id, and counts it."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(12)
        scope.setdefault("state", {})["id"] = request_id
        address = _address(scope)
        path = address if address in ENDPOINTS else "other"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.metrics.count_response(path, message["status"])
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        error = self._access_error(scope)
        if error is not None:
            await error.response(address)(scope, receive, send_with_id)
            return
        with self._service.open_request():
            await self._app(scope, receive, send_with_id)

    def _access_error(self, scope: Scope) -> ErrorResponse | None:
        address, headers = _address(scope), dict(scope["headers"])
        is_api_call = address.startswith("/v1/")
        if is_api_call or address.startswith(PROTECTED_PATHS):  # a route also matches a path with a trailing newline
            key = headers.get(b"x-api-key")  # sent by Anthropic's clients
            authorization = headers.get(b"authorization", b"") if key is None else b"Bearer " + key
            if not self._service.is_authorized(authorization.decode("latin-1")):
                message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
                error_headers = {"www-authenticate": "Bearer", "connection": "close"}
                return ErrorResponse(401, message, code="invalid_api_key", headers=error_headers)
        if is_api_call and scope["method"] == "POST" and self._service.draining:
            message = "the server is shutting down and accepts no more requests; ask again in a while"
            return ErrorResponse(503, message, code="unavailable", headers={"retry-after": "10", "connection": "close"})
        return None


def _address(scope: Scope) -> str:
    """Returns the path that routes match, without the prefix of a mount or a proxy."""
    path, root = scope["path"], scope.get("root_path", "")
    is_mounted = root and (path == root or path.startswith(f"{root}/"))
    return path[len(root) :] if is_mounted else path
