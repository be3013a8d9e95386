"""Several processes that run one program: they meet first, so that one that is missing is reported by its number.

Without that, JAX's own start ends a process that waits in vain with a core dump.
"""

import collections
import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

RETRY_SECONDS = 0.2  # seconds between two attempts to reach process 0
GRACE_SECONDS = 2.0  # seconds that one who came stays beyond its time: process 0 gives up first, and counts it as there
MAX_MESSAGE_BYTES = 16  # bytes that a process needs to say its number
AUTO = "auto"
MONTH = 30 * 24 * 3600.0  # seconds


def join(coordinator: str, processes: int | None = None, process: int | None = None, *, timeout: float = 300.0) -> None:
    """Makes this process one of several; call it before anything is computed, in each of them.

    Args:
        coordinator: `host:port` at which process 0 can be reached; "auto" finds all of this out where JAX can: on TPU
            slices, under Slurm, Open MPI and Kubernetes.
        processes, process: how many there are, and which of them this is, counted from 0.
        timeout: seconds in which all have to be there.

    Raises:
        ValueError: an address or number that cannot be, hosts with different numbers of devices, or "auto"
            with numbers or where no setting names other processes.
        TimeoutError: not all came in time; names the missing ones. With "auto" it is JAX that waits, and ends the
            process with a message of its own.
    """
    seconds = max(int(timeout), 1)
    if coordinator == AUTO:
        if processes is not None or process is not None:
            raise ValueError(
                f'processes={processes}, process={process} beside "auto", which finds them out; leave them out'
            )
        try:
            jax.distributed.initialize(initialization_timeout=seconds)
        except ValueError as error:
            raise ValueError(
                f"nothing here tells of other processes ({error}); expected a TPU slice or a cluster's launcher; give "
                "the coordinator's host:port and the numbers of processes instead"
            ) from None
    else:
        if processes is None or process is None:
            raise ValueError(f"processes={processes}, process={process} at {coordinator!r}; expected both numbers")
        meet(coordinator, processes, process, timeout)
        jax.distributed.initialize(coordinator, processes, process, initialization_timeout=seconds)
    devices = collections.Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        counts = ", ".join(f"process {number} has {count}" for number, count in sorted(devices.items()))
        raise ValueError(f"{counts} devices; expected as many on each host")


def from_first_process(values: np.ndarray) -> np.ndarray:
    """Process 0's values, in every process; all have to call it, with arrays of one shape."""
    return np.asarray(multihost_utils.broadcast_one_to_all(values))


def any_process(so: bool) -> bool:
    """Returns whether any process says so; all have to ask."""
    return so if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(so)).any())


def wait_for_others(at: str, *, timeout: float = MONTH) -> None:
    """Returns when every process has called it; `at` is a name for the place.

    Processes that work on their own for hours end together so: JAX takes one that leaves early for one that died.
    """
    from orbax.checkpoint import multihost  # two seconds to import

    multihost.get_barrier_sync_fn()(key=at, timeout_ms=int(timeout * 1000))


def meet(coordinator: str, processes: int, process: int, timeout: float) -> None:
    """Returns when all processes are there; see `join`."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 <= process < processes:
        raise ValueError(
            f"process {process} of {processes} at {coordinator!r}; expected host:port, and a number from 0 to "
            f"{processes - 1}"
        )
    deadline = time.monotonic() + timeout
    if process == 0:
        _wait_for_all(int(port), processes, deadline, timeout)
    else:
        _report(host, int(port), process, deadline, timeout)


def _wait_for_all(port: int, processes: int, deadline: float, timeout: float) -> None:
    arrived: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("", port), backlog=processes))
        visits = _visits(server, opened, deadline)
        while len(arrived) < processes - 1:
            visit = next(visits, None)
            if visit is None:
                missing = ", ".join(str(n) for n in range(1, processes) if n not in arrived)
                raise TimeoutError(
                    f"process {missing} of {processes} did not come within {timeout:g} s; start it on its host, where "
                    f"port {port} of this one can be reached, and start the others again"
                )
            connection, message = visit
            arrived = {number: other for number, other in arrived.items() if other is not connection}
            if not message.isdecimal() or not 0 < int(message) < processes:
                continue  # somebody else, or one that left again
            if int(message) in arrived:
                raise ValueError(f"two processes say that they are number {message}; give each its own")
            arrived[int(message)] = connection
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        for number, connection in arrived.items():
            connection.settimeout(max(deadline - time.monotonic(), 1.0))
            try:
                connection.sendall(b"go\n")
            except OSError:
                raise TimeoutError(f"process {number} of {processes} came and left again; start all again") from None
        for connection in arrived.values():
            _received(connection)  # the other side closes first, which leaves the port free


def _visits(
    server: socket.socket, opened: contextlib.ExitStack, deadline: float
) -> Iterator[tuple[socket.socket, str]]:
    """Yields connections and their messages until the deadline; "" when they leave.

    Nobody is waited for alone: a port scanner that connects and says nothing would keep the others out.
    """
    received: dict[socket.socket, bytes] = {}
    watched = opened.enter_context(selectors.DefaultSelector())
    watched.register(server, selectors.EVENT_READ)
    while (left := deadline - time.monotonic()) > 0:
        for key, _ in watched.select(left):
            if key.fd == server.fileno():
                connection = opened.enter_context(server.accept()[0])
                connection.setblocking(False)
                # Closed from here, a stranger's connection would occupy the port for a minute (TIME_WAIT).
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                watched.register(connection, selectors.EVENT_READ, connection)
                received[connection] = b""
                continue
            connection = key.data
            more = _received(connection)
            received[connection] += more
            full = len(received[connection]) >= MAX_MESSAGE_BYTES
            if not more or full:
                watched.unregister(connection)
            if not more or full or b"\n" in received[connection]:
                yield connection, received.pop(connection).decode(errors="replace").strip() if more else ""
                received[connection] = b""


def _received(connection: socket.socket) -> bytes:
    """Returns the bytes received; empty when the other side has left."""
    try:
        return connection.recv(MAX_MESSAGE_BYTES)
    except OSError:
        return b""


def _report(host: str, port: int, process: int, deadline: float, timeout: float) -> None:
    message = ""
    while time.monotonic() < deadline and not message:
        with contextlib.suppress(OSError), socket.create_connection((host, port), RETRY_SECONDS) as connection:
            connection.settimeout(max(deadline - time.monotonic(), 0) + GRACE_SECONDS)
            connection.sendall(f"{process}\n".encode())
            message = connection.makefile().readline()
            if not message:
                break
        if not message:
            time.sleep(RETRY_SECONDS)
    if message != "go\n":
        raise TimeoutError(
            f"process {process} reached no process 0 at {host}:{port}, or not all others did, within {timeout:g} s; "
            "look at what process 0 says, and start all again"
        )
