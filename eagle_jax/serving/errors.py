"""Errors in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`."""

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from eagle_jax.fields import FieldError
from eagle_jax.protocols.anthropic import anthropic_error
from eagle_jax.protocols.base import encode_json

log = logging.getLogger("eagle_jax.serving")

# OpenAI's error types by status; every other 4xx is an invalid request.
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
MESSAGES = {
    404: "there is nothing at {path}; expected /v1/models, completions, chat/completions, responses or messages",
    405: "{path} does not accept {method}",
}


ANTHROPIC_PATH = "/v1/messages"


class ErrorResponse(Exception):
    """Raised to send an error as the response to a request.

    Attributes:
        status: HTTP status.
        message: one sentence.
        param: the invalid field, if there is one.
        code: OpenAI's error code.
        headers: headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        error_type = ERROR_TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

    def response(self, path: str) -> Response:
        """Returns the response to a request at this path; below /v1/messages it has Anthropic's format."""
        body = anthropic_error(self.status, self.message) if ANTHROPIC_PATH in path else self.body
        return JsonResponse(body, status_code=self.status, headers=self.headers)


class JsonResponse(JSONResponse):
    """A JSON response that may contain lone surrogates."""

    def render(self, content: Any) -> bytes:
        return encode_json(content)


async def on_error_response(request: Request, error: Exception) -> Response:
    """Returns the response of an `ErrorResponse`."""
    assert isinstance(error, ErrorResponse)
    return error.response(request.url.path)


async def on_field_error(request: Request, error: Exception) -> Response:
    """Returns the response to a request with an invalid field."""
    assert isinstance(error, FieldError)
    return ErrorResponse(400, str(error), param=error.param).response(request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Returns the response to a request that the router rejects."""
    assert isinstance(error, HTTPException)
    template = MESSAGES.get(error.status_code, error.detail)
    message = template.format(path=repr(request.url.path), method=request.method)
    return ErrorResponse(error.status_code, message, headers=error.headers).response(request.url.path)


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Returns a response that nobody receives, for the metrics."""
    return ErrorResponse(499, "the client disconnected").response(request.url.path)


async def on_unexpected(request: Request, error: Exception) -> Response:
    """Logs an internal error and returns the response to it."""
    log.error("a request failed", exc_info=error)
    response = ErrorResponse(500, f"the server failed at this request ({type(error).__name__}); see its log")
    return response.response(request.url.path)
