"""Processes meet before they start: all there, one missing, one twice. Threads stand in for processes."""

import concurrent.futures
import contextlib
import socket
import time
import types

import pytest

from eagle_jax.sharding.hosts import join, meet


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def outcomes(address: str, processes: int, numbers: list[int], timeout: float) -> list[BaseException | None]:
    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
        meeting = [pool.submit(meet, address, processes, number, timeout) for number in numbers]
        return [one.exception() for one in meeting]


def test_all_are_there(address):
    assert outcomes(address, 3, [2, 0, 1], 10.0) == [None] * 3
    assert outcomes(address, 2, [1, 0], 10.0) == [None] * 2  # the port is free again


def test_a_missing_process_is_named_in_time(address):
    started = time.monotonic()
    waited, other = outcomes(address, 4, [0, 2], 2.0)
    assert time.monotonic() - started < 12
    assert isinstance(waited, TimeoutError) and "process 1, 3 of 4 did not come within 2 s" in str(waited)
    assert isinstance(other, TimeoutError) and "look at what process 0 says" in str(other)


def test_one_that_came_before_process_0_is_not_missing(address):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        early = pool.submit(meet, address, 3, 1, 1.0)
        time.sleep(0.5)
        waited = pool.submit(meet, address, 3, 0, 1.0).exception()
        assert isinstance(early.exception(), TimeoutError)
    assert isinstance(waited, TimeoutError) and "process 2 of 3 did not come within 1 s" in str(waited)


def test_nobody_is_process_0(address):
    (alone,) = outcomes(address, 2, [1], 0.5)
    assert isinstance(alone, TimeoutError) and "process 1 reached no process 0 at 127.0.0.1" in str(alone)


def test_two_of_one_number(address):
    errors = [error for error in outcomes(address, 4, [0, 2, 2], 2.0) if isinstance(error, ValueError)]
    assert [str(error) for error in errors] == ["two processes say that they are number 2; give each its own"]


@pytest.mark.parametrize("address, process", [("localhost", 0), ("localhost:80", 2), ("localhost:x", 0)])
def test_what_cannot_be_is_refused_at_once(address, process):
    with pytest.raises(ValueError, match="expected host:port, and a number from 0 to 1"):
        join(address, 2, process)


def test_visitors_are_no_processes(address):
    """One says nothing, one says too much, one leaves at once: none of them keeps the others waiting."""
    host, _, port = address.rpartition(":")
    with concurrent.futures.ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as opened:
        waiting = pool.submit(meet, address, 2, 0, 20.0)
        visitors = []
        while len(visitors) < 3:
            with contextlib.suppress(ConnectionRefusedError):
                visitors.append(opened.enter_context(socket.create_connection((host, int(port)))))
        visitors[1].sendall(b"GET / HTTP/1.1\r\nHost: me\r\n\r\n")
        visitors[2].close()
        started = time.monotonic()
        meet(address, 2, 1, 20.0)
        waiting.result()
    assert time.monotonic() - started < 10
    with socket.create_server(("", int(port))):
        pass  # the port is free for JAX


def test_one_that_left_may_come_again(address):
    host, _, port = address.rpartition(":")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, address, 3, 0, 20.0)
        gone = None
        while gone is None:
            with contextlib.suppress(ConnectionRefusedError):
                gone = socket.create_connection((host, int(port)))
        gone.sendall(b"1\n")
        gone.close()
        time.sleep(0.2)
        assert outcomes(address, 3, [1, 2], 20.0) == [None, None]
        waiting.result()


def test_auto_where_nobody_tells_of_others(monkeypatch):
    def initialize(**_: object) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr("jax.distributed.initialize", initialize)
    with pytest.raises(ValueError, match="nothing here tells of other processes .*give the coordinator's host:port"):
        join("auto")
    with pytest.raises(ValueError, match="processes=2, process=None at 'here:1'; expected both numbers"):
        join("here:1", 2)
    with pytest.raises(ValueError, match='processes=2, process=None with "auto", which finds them out'):
        join("auto", 2)


def test_hosts_with_different_numbers_of_devices(monkeypatch):
    """Stand-ins for the devices of two processes."""
    devices = [types.SimpleNamespace(process_index=process) for process in (0, 0, 1)]
    monkeypatch.setattr("jax.distributed.initialize", lambda *_, **__: None)
    monkeypatch.setattr("jax.devices", lambda: devices)
    with pytest.raises(ValueError, match="process 0 has 2, process 1 has 1 devices; expected as many on each host"):
        join("auto")
