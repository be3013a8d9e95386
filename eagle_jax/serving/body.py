"""The body of a request, with limits on its size, its depth and the time it takes to come."""

import asyncio
import json
from typing import Any

from starlette.requests import Request

from eagle_jax.serving.errors import ErrorResponse

PATIENCE = 16  # bodies that are too large are read on to so many times the limit, so that the sender hears the answer
CLOSE = {"connection": "close"}


async def read_json(request: Request, max_bytes: int, seconds: float) -> dict[str, Any]:
    """Returns the JSON object that was sent.

    Raises:
        ErrorResponse: the body is too large (413), too slow (408), not JSON (400), or of another content type (415).
        ClientDisconnect: the client disconnected.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise ErrorResponse(
            408, f"the body did not come within {seconds:g} seconds; send it at once", headers=CLOSE
        ) from None
    # a web page of somebody else could send any other kind without asking, but not without its origin
    if kind != "application/json" and "origin" in request.headers:
        raise ErrorResponse(415, f"the body is of type {kind[:80]!r}; expected application/json")
    return _parsed(body)


async def _read(request: Request, max_bytes: int) -> bytes:
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= max_bytes:
            body += piece
        elif size > PATIENCE * max_bytes:
            break
    if size > max_bytes:
        raise ErrorResponse(413, f"the body is larger than {max_bytes} bytes; send less", headers=CLOSE)
    return bytes(body)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_number, object_pairs_hook=_no_twins)
    except UnicodeDecodeError as error:
        raise ErrorResponse(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ErrorResponse(400, "the body is nested too deeply; OpenAI's requests are a few levels deep") from None
    except ValueError as error:
        raise ErrorResponse(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ErrorResponse(400, f"the body is a JSON {_kind(value)}; expected an object")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has two fields of one name")
    return value


def _kind(value: Any) -> str:
    names = {list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
