"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

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

# What OpenAI calls the kinds of errors, by status; every other 4xx is an invalid request.
TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
PHRASES = {
    404: "there is nothing at {path}; expected /v1/models, completions, chat/completions, responses or messages",
    405: "{path} does not take {method}",
}


ANTHROPIC = "/v1/messages"


class ErrorResponse(Exception):
    """A request that gets an error instead of an answer.

    Attributes:
        status: HTTP's.
        message: one sentence.
        param: the field that is wrong.
        code: a word for programs.
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
        """The error as it is sent."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str) -> Response:
        """Returns the response to a request at this path; Anthropic's clients get errors in their form."""
        body = anthropic_error(self.status, self.message) if ANTHROPIC in path else self.body
        return Json(body, status_code=self.status, headers=self.headers)


class Json(JSONResponse):
    """JSON in UTF-8, also of a text with half a character (a lone surrogate)."""

    def render(self, content: Any) -> bytes:
        return encode_json(content)


async def on_error_response(request: Request, error: Exception) -> Response:
    """Returns the response to a request that was refused."""
    assert isinstance(error, ErrorResponse)
    return error.response(request.url.path)


async def on_wrong_field(request: Request, error: Exception) -> Response:
    """Returns the response to a request with a field that cannot be followed."""
    assert isinstance(error, FieldError)
    return ErrorResponse(400, str(error), param=error.param).response(request.url.path)


async def on_http(request: Request, error: Exception) -> Response:
    """Returns the response to what the router refuses."""
    assert isinstance(error, HTTPException)
    phrase = PHRASES.get(error.status_code, error.detail)
    message = phrase.format(path=repr(request.url.path), method=request.method)
    return ErrorResponse(error.status_code, message, headers=error.headers).response(request.url.path)


async def on_gone(request: Request, error: Exception) -> Response:
    """Returns a response for a client that is gone; it is only counted."""
    return ErrorResponse(499, "the client is gone").response(request.url.path)


async def on_unexpected(request: Request, error: Exception) -> Response:
    """Returns the response to an internal error; the server goes on, and its log has the traceback."""
    log.error("a request failed", exc_info=error)
    refused = ErrorResponse(500, f"the server failed at this request ({type(error).__name__}); its log says more")
    return refused.response(request.url.path)
