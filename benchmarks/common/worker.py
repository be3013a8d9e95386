"""A process that answers every line of JSON with another: another program, or another checkout."""

import contextlib
import json
import os
import subprocess
import tempfile
from typing import Any


class Worker:
    """The process of a command; `environment` is added to this one's.

    Raises:
        RuntimeError: it did not start, or ended when it was asked; with its last line.
    """

    def __init__(self, name: str, command: list[str], environment: dict[str, str]):
        self.name, self._errors = name, tempfile.TemporaryFile("w+")
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._process = subprocess.Popen(command, env=os.environ | environment, text=True, **pipes)
        self._answer()  # one line when it is ready

    def ask(self, request: Any) -> Any:
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # it ended before it read its last question
                stream.close()

    def _answer(self) -> Any:
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        errors = [line.strip() for line in self._errors if line.strip()]
        self.close()
        raise RuntimeError(f"{self.name} ended; its last line: {errors[-1] if errors else 'none'}")
