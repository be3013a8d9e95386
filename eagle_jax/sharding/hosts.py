"""Joins several processes into one program: they connect first, so that a missing process is reported by its number.

Otherwise JAX ends a process that waits in vain with a core dump.
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
GRACE_SECONDS = 2.0  # seconds that a process waits after the timeout, so that process 0 gives up first and counts it
MAX_MESSAGE_BYTES = 16  # length of the longest process number
AUTO = "auto"
MONTH = 30 * 24 * 3600.0  # seconds


def join(coordinator: str, processes: int | None = None, process: int | None = None, *, timeout: float = 300.0) -> None:
    """Makes this process one of several; every process must call it before it computes anything.

    Args:
        coordinator: `host:port` of process 0; "auto" detects all arguments where JAX can: on TPU slices, under Slurm,
            Open MPI and Kubernetes.
        processes, process: number of processes, and the number of this one, counted from 0.
        timeout: seconds in which all processes must connect.

    Raises:
        ValueError: an invalid address or number, hosts with different numbers of devices, or "auto" with numbers or
            without a cluster.
        TimeoutError: some processes did not connect in time; names them. With "auto" JAX waits, and ends the process
            with its own message.
    """
    seconds = max(int(timeout), 1)
    if coordinator == AUTO:
        if processes is not None or process is not None:
            raise ValueError(
                f'processes={processes}, process={process} with "auto", which finds them out; leave them out'
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
    """Returns process 0's values in every process; all processes must call it, with arrays of one shape."""
    return np.asarray(multihost_utils.broadcast_one_to_all(values))


def any_process(flag: bool) -> bool:
    """Returns whether `flag` is true in any process; all processes must call it."""
    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(flag)).any())


def wait_for_others(at: str, *, timeout: float = MONTH) -> None:
    """Returns when every process has called it; `at` is the name of the barrier.

    Independent processes must end together, because JAX treats a process that leaves early as crashed.
    """
    from orbax.checkpoint import multihost  # two seconds to import

    multihost.get_barrier_sync_fn()(key=at, timeout_ms=int(timeout * 1000))


def meet(coordinator: str, processes: int, process: int, timeout: float) -> None:
    """Returns when all processes have connected; see `join`."""
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
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("", port), backlog=processes))
        visits = _visits(server, stack, deadline)
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
                continue  # a stranger, or a process that has left again
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
            _received(connection)  # the other side closes first, which keeps the port free


def _visits(server: socket.socket, stack: contextlib.ExitStack, deadline: float) -> Iterator[tuple[socket.socket, str]]:
    """Yields connections with their messages until the deadline; the message is "" when a connection closes.

    It waits for all connections at once: a port scanner that connects and sends nothing must not block the others.
    """
    received: dict[socket.socket, bytes] = {}
    watched = stack.enter_context(selectors.DefaultSelector())
    watched.register(server, selectors.EVENT_READ)
    while (left := deadline - time.monotonic()) > 0:
        for key, _ in watched.select(left):
            if key.fd == server.fileno():
                connection = stack.enter_context(server.accept()[0])
                connection.setblocking(False)
                # Without it, closing a stranger's connection would occupy the port for a minute (TIME_WAIT).
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                watched.register(connection, selectors.EVENT_READ, connection)
                received[connection] = b""
                continue
            connection = key.data
            data = _received(connection)
            received[connection] += data
            is_full = len(received[connection]) >= MAX_MESSAGE_BYTES
            if not data or is_full:
                watched.unregister(connection)
            if not data or is_full or b"\n" in received[connection]:
                yield connection, received.pop(connection).decode(errors="replace").strip() if data else ""
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
