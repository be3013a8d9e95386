"""The process around the application: sockets, signals, and patience with senders that has an end."""

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

# A family or an address that this machine does not have, as IPv6 in many containers, leaves the others.
ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
LAST_SECONDS = 5  # that connections have once there is nothing left to answer
UNREAD_SECONDS = 30.0  # that a client has to read what is left when its connection is closed


class Server(uvicorn.Server):
    """Serves until a first SIGTERM or SIGINT; then finishes what is under way, refuses what is new, and ends.

    A second signal ends it within `LAST_SECONDS`.

    Args:
        app: of `create_app`.
        on_ready: called with the addresses once requests are taken.
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
            http=_patient(self._service.limits),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=LAST_SECONDS,
        )
        super().__init__(config)

    def drain(self) -> None:
        """Takes no more requests, and ends once those under way are answered."""
        self._service.drain()
        self._drain_until = time.monotonic() + self._service.limits.drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.draining:
            super().handle_exit(sig, frame)
        else:
            self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for opened in sockets or ():
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # listening looks at lingering connections too
        await super().startup(sockets)
        names = [listening.getsockname() for server in self.servers for listening in server.sockets]
        self._on_ready([_address(*name[:2]) for name in names])

    async def on_tick(self, counter: int) -> bool:
        if self._service.draining and (not self._service.open or time.monotonic() > self._drain_until):
            self.should_exit = True
        return await super().on_tick(counter)


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of a host, for `Server.run(sockets=)`; until it runs, connections are refused.

    Raises:
        ValueError: the host is not known, or its port is taken.
    """
    sockets: list[socket.socket] = []
    failed: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            try:
                sockets.append(_bound(family, kind, protocol, address))
            except OSError as error:
                failed = error
                if error.errno not in ABSENT:
                    raise
        if not sockets and failed is not None:
            raise failed
    except OSError as error:
        for opened in sockets:
            opened.close()
        why = (error.strerror or str(error)).lower()
        raise ValueError(f"the server cannot have {host}, port {port}: {why}; choose another host or port") from None
    return sockets


def _bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier server's last connections may linger
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
    except OSError:
        opened.close()
        raise
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # or another could bind it too, until one listens
    return opened


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class AbortingTransport:
    """A transport that does not wait for ever for a client that reads nothing, least of all once it is closed."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop = transport, loop
        self._abort: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self.abort_in(UNREAD_SECONDS)
        self._transport.close()

    def abort_in(self, seconds: float) -> None:
        """Drops what is unread after so long, unless that is forgotten; what was closed before keeps its limit."""
        if not self._transport.is_closing():
            self.forget()
            self._abort = self._loop.call_later(seconds, self._transport.abort)

    def forget(self) -> None:
        """Cancels the abort: enough of the data to drop was read, or the connection is closed."""
        if self._abort is not None:
            self._abort.cancel()
            self._abort = None


class _Patient(H11Protocol):
    """HTTP/1.1 that waits a limited time for a request's head and for the reader of its answer.

    What is not HTTP is answered in our form.
    """

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
        self._aborting.forget()

    def eof_received(self) -> None:
        self._aborting.close()  # or asyncio closes the bare transport

    def pause_writing(self) -> None:
        super().pause_writing()
        self._aborting.abort_in(self.limits.answer_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._aborting.forget()

    def send_400_response(self, msg: str) -> None:
        self._end_with(ErrorResponse(400, f"this is no HTTP/1.1: {msg}"))

    def _wait_for_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self.waiting is None:
            self.waiting = self.loop.call_later(self.limits.head_seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _too_slow(self) -> None:
        self.waiting = None
        if self.cycle is None or self.cycle.response_complete:
            seconds = self.limits.head_seconds
            self._end_with(ErrorResponse(408, f"no request came within {seconds:g} seconds; send it at once"))

    def _end_with(self, refused: ErrorResponse) -> None:
        if not self.transport.is_closing():
            body = encode_json(refused.body)
            head = f"HTTP/1.1 {refused.status} Refused\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self.transport.close()


def _patient(limits: Limits) -> type[_Patient]:
    """Returns the protocol with these limits; the server makes an instance for each connection."""
    return type("Patient", (_Patient,), {"limits": limits})
