"""Servers of others and of ours, started for as long as they are measured."""

import contextlib
import shlex
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def running(command: Sequence[str], seconds: float) -> Iterator[str]:
    """The address of a server, once it answers at `/health`; it is killed at the end of the block.

    Args:
        command: with `{port}` where the port belongs.
        seconds: that it may take to start.

    Raises:
        ChildProcessError: it did not start; with its last line.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    filled = [part.replace("{port}", str(port)) for part in command]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(filled, stdout=log, stderr=log) as process:
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + seconds
            while not _is_healthy(url):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    last = [line.strip() for line in log if line.strip()][-1:]
                    raise ChildProcessError(f"{shlex.join(filled)} did not start: {last[0] if last else 'no word'}")
                time.sleep(0.1)
            yield url
        finally:
            process.kill()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
