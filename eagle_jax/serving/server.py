"""The server process: sockets, signals, and timeouts of slow clients."""

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from eagle_jax.serving.errors import ErrorResponse, encode_json
from eagle_jax.serving.service import Limits, Service

# Address families that the machine lacks, such as IPv6 in many containers, are skipped.
ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
SHUTDOWN_SECONDS = 5  # for open connections once all requests are answered
UNREAD_SECONDS = 30.0  # for a client to read the remaining data when its connection is closed


class Server(uvicorn.Server):
    """Serves until the first SIGTERM or SIGINT, then finishes running requests, rejects new ones, and ends.

    A second signal ends it within `SHUTDOWN_SECONDS`.

    Args:
        app: from `create_app`.
        on_ready: called with the addresses once requests are accepted.
    """

    def __init__(
        self,
        app: Starlette,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        on_ready: Callable[[list[str]], None] = lambda addresses: None,
    ):
        self._service: Service = app.state.service
        self._on_ready = on_ready
        self._drain_until = float("inf")
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=_protocol_with(self._service.limits),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        super().__init__(config)

    def drain(self) -> None:
        """Rejects new requests, and ends once the running ones are answered."""
        self._service.drain()
        self._drain_until = time.monotonic() + self._service.limits.drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.draining:
            super().handle_exit(sig, frame)
        else:
            self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for sock in sockets or ():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # `listen` fails for lingering connections too
        await super().startup(sockets)
        addresses = [sock.getsockname() for server in self.servers for sock in server.sockets]
        self._on_ready([_address(*name[:2]) for name in addresses])

    async def on_tick(self, counter: int) -> bool:
        if self._service.draining and (not self._service.open or time.monotonic() > self._drain_until):
            self.should_exit = True
        return await super().on_tick(counter)


def bound(host: str, port: int) -> list[socket.socket]:
    """Binds sockets to all addresses of a host, for `Server.run(sockets=)`; until then, connections are refused.

    Raises:
        ValueError: the host is unknown, or the port is taken.
    """
    sockets: list[socket.socket] = []
    last_error: OSError | None = None
    try:
        for family, type_, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            try:
                sockets.append(_bound(family, type_, protocol, address))
            except OSError as error:
                last_error = error
                if error.errno not in ABSENT:
                    raise
        if not sockets and last_error is not None:
            raise last_error
    except OSError as error:
        for sock in sockets:
            sock.close()
        reason = (error.strerror or str(error)).lower()
        raise ValueError(f"the server cannot bind {host}, port {port}: {reason}; choose another host or port") from None
    return sockets


def _bound(family: int, type_: int, protocol: int, address: Any) -> socket.socket:
    sock = socket.socket(family, type_, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier server's last connections may linger
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # or another server could bind it before `listen`
    return sock


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class AbortingTransport:
    """A transport that is aborted if the client does not read for too long, also after it was closed."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop = transport, loop
        self._abort: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self.abort_in(UNREAD_SECONDS)
        self._transport.close()

    def abort_in(self, seconds: float) -> None:
        """Schedules an abort, unless the transport is closing, which has its own limit."""
        if not self._transport.is_closing():
            self.cancel_abort()
            self._abort = self._loop.call_later(seconds, self._transport.abort)

    def cancel_abort(self) -> None:
        """Cancels the scheduled abort, since the client has read enough or the connection is lost."""
        if self._abort is not None:
            self._abort.cancel()
            self._abort = None


class _TimeoutProtocol(H11Protocol):
    """HTTP/1.1 with timeouts for the head of a request and for the reader of its response."""

    limits: ClassVar[Limits]
    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._aborting = AbortingTransport(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._aborting))
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._aborting.cancel_abort()

    def eof_received(self) -> None:
        self._aborting.close()  # otherwise asyncio closes the bare transport

    def pause_writing(self) -> None:
        super().pause_writing()
        self._aborting.abort_in(self.limits.answer_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._aborting.cancel_abort()

    def send_400_response(self, msg: str) -> None:
        self._close_with_error(ErrorResponse(400, f"this is not HTTP/1.1: {msg}"))

    def _wait_for_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self.waiting is None:
            self.waiting = self.loop.call_later(self.limits.head_seconds, self._on_head_timeout)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _on_head_timeout(self) -> None:
        self.waiting = None
        if self.cycle is None or self.cycle.response_complete:
            seconds = self.limits.head_seconds
            self._close_with_error(ErrorResponse(408, f"no request within {seconds:g} seconds; send it at once"))

    def _close_with_error(self, error: ErrorResponse) -> None:
        if not self.transport.is_closing():
            body = encode_json(error.body)
            head = f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self.transport.close()


def _protocol_with(limits: Limits) -> type[_TimeoutProtocol]:
    """Returns the protocol class with these limits; the server creates an instance per connection."""
    return type("Patient", (_TimeoutProtocol,), {"limits": limits})
