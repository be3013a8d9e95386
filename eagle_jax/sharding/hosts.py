"""Several processes that run one program: they meet first, so that one that is missing is told by its number.

Without that, JAX's own start ends a process that waits in vain with a core dump.
"""

import collections
import contextlib
import socket
import time

import jax

NEXT_TRY = 0.2  # seconds between two attempts to reach process 0


def join(coordinator: str, processes: int, process: int, *, timeout: float = 300.0) -> None:
    """Makes this process one of several; call it before anything is computed, in each of them.

    On TPU slices `jax.distributed.initialize()` finds all of this out by itself.

    Args:
        coordinator: `host:port` at which process 0 can be reached.
        processes, process: how many there are, and which of them this is, counted from 0.
        timeout: seconds in which all have to be there.

    Raises:
        ValueError: an address or number that cannot be, or hosts with different numbers of devices.
        TimeoutError: not all came in time; names the missing ones.
    """
    meet(coordinator, processes, process, timeout)
    jax.distributed.initialize(coordinator, processes, process, initialization_timeout=max(int(timeout), 1))
    devices = collections.Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        counts = ", ".join(f"process {number} has {count}" for number, count in sorted(devices.items()))
        raise ValueError(f"{counts} devices; expected as many on each host")


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
        server = opened.enter_context(socket.create_server(("", port)))
        while len(arrived) < processes - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection = opened.enter_context(server.accept()[0])
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                said = connection.makefile().readline().strip()
            except TimeoutError:
                missing = ", ".join(str(n) for n in range(1, processes) if n not in arrived)
                raise TimeoutError(
                    f"process {missing} of {processes} did not come within {timeout:g} s; start it on its host, where "
                    f"port {port} of this one can be reached, and start the others again"
                ) from None
            if not said.isdigit() or not 0 < int(said) < processes:
                continue  # somebody else
            if int(said) in arrived:
                raise ValueError(f"two processes say that they are number {said}; give each its own")
            arrived[int(said)] = connection
        for connection in arrived.values():
            connection.sendall(b"go\n")
        for connection in arrived.values():
            connection.recv(1)  # the other side closes first, which leaves the port free


def _report(host: str, port: int, process: int, deadline: float, timeout: float) -> None:
    said = ""
    while time.monotonic() < deadline and not said:
        with contextlib.suppress(OSError), socket.create_connection((host, port), NEXT_TRY) as connection:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            connection.sendall(f"{process}\n".encode())
            said = connection.makefile().readline()
            if not said:
                break
        if not said:
            time.sleep(NEXT_TRY)
    if said != "go\n":
        raise TimeoutError(
            f"process {process} reached no process 0 at {host}:{port}, or not all others did, within {timeout:g} s; "
            "look at what process 0 says, and start all again"
        )
