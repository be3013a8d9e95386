"""Reads request bodies, with limits on size, depth and time."""

import asyncio
import json
from typing import Any

from starlette.requests import Request

from eagle_jax.serving.errors import ErrorResponse

READ_FACTOR = 16  # too large bodies are read up to this multiple of the limit, so that the client gets the response
CLOSE = {"connection": "close"}


async def read_json(request: Request, max_bytes: int, seconds: float) -> dict[str, Any]:
    """Returns the JSON object in a request's body.

    Raises:
        ErrorResponse: the body is too large (413), too slow (408), not JSON (400), or of another content type (415).
        ClientDisconnect: the client disconnected.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise ErrorResponse(
            408, f"the body did not arrive within {seconds:g} seconds; send it at once", headers=CLOSE
        ) from None
    # browsers let any web page send other content types without a CORS preflight, but always with an origin
    if content_type != "application/json" and "origin" in request.headers:
        raise ErrorResponse(415, f"the body is of type {content_type[:80]!r}; expected application/json")
    return _parse(body)


async def _read(request: Request, max_bytes: int) -> bytes:
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= max_bytes:
            body += piece
        elif size > READ_FACTOR * max_bytes:
            break
    if size > max_bytes:
        raise ErrorResponse(413, f"the body is larger than {max_bytes} bytes; send less", headers=CLOSE)
    return bytes(body)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(
            body.decode("utf-8-sig"), parse_constant=_reject_constant, object_pairs_hook=_reject_duplicate_names
        )
    except UnicodeDecodeError as error:
        raise ErrorResponse(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ErrorResponse(400, "the body is nested too deeply; OpenAI's requests are a few levels deep") from None
    except ValueError as error:
        raise ErrorResponse(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ErrorResponse(400, f"the body is a JSON {_json_type(value)}; expected an object")
    return value


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has two fields with the same name")
    return value


def _json_type(value: Any) -> str:
    names = {list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
