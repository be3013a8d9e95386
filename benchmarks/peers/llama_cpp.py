"""llama.cpp as further methods: its server, plainly and with each of its modes that draft from the text."""

import contextlib
import json
import os
import pathlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence

from benchmarks.common.servers import running
from benchmarks.common.turns import Answer, Method

MODES = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
SHIM = pathlib.Path(__file__).with_name("llama_server.py")
START = 60  # seconds that a server may take


@contextlib.contextmanager
def methods(
    binaries: pathlib.Path, file: pathlib.Path, new_tokens: int, *, until_end: bool, modes: Sequence[str] = MODES
) -> Iterator[dict]:
    """A server for each mode that this build knows, with as many threads as there are cores, as methods by name.

    Args:
        binaries: folder that holds `llama-server`, or a Python that has xllamacpp.
        file: a GGUF file.
        modes: those asked for.

    Raises:
        ValueError: there is no server there.
        ChildProcessError: it did not start; with its last line.
    """
    methods: dict[str, Method] = {}
    with contextlib.ExitStack() as stack:
        for name, command in commands(binaries, file, modes).items():
            methods[name] = _method(stack.enter_context(running(command, START)), new_tokens, until_end=until_end)
        yield methods


def commands(
    binaries: pathlib.Path,
    file: pathlib.Path,
    modes: Sequence[str] = MODES,
    *,
    parallel: str = "1",
    context: int = 0,
) -> dict[str, list[str]]:
    """What starts a server in each of the modes that this build knows, by name, with `{port}` where the port belongs.

    Args:
        parallel: requests at a time.
        context: tokens of all of them together; 0 is the model's.

    Raises:
        ValueError: there is no server there.
    """
    server = _server_in(binaries)
    shown = subprocess.run([*server, "--help"], capture_output=True, text=True)
    if shown.returncode and binaries.is_file():
        last = (shown.stderr.strip() or "no word").splitlines()[-1]
        raise ValueError(f"{binaries} gives no server of llama.cpp: {last}")
    threads = str(os.cpu_count())
    command = [*server, "--model", str(file), "--port", "{port}", "--threads", threads, "--threads-batch", threads]
    command += ["--parallel", parallel, "--ctx-size", str(context)]
    known = {mode: command + ["--spec-type", mode] for mode in modes if mode != "none" and mode in shown.stdout}
    plain = {"llama.cpp plain": command} if "none" in modes else {}
    return plain | {f"llama.cpp {mode}": command for mode, command in known.items()}


def _server_in(binaries: pathlib.Path) -> list[str]:
    if binaries.is_file():
        return [str(binaries), str(SHIM)]
    binary = binaries / "llama-server"
    if not binary.is_file():
        raise ValueError(
            f"{binaries} holds no llama-server; give the folder of llama.cpp's binaries, or a Python with xllamacpp"
        )
    return [str(binary)]


def _method(url: str, new_tokens: int, *, until_end: bool) -> Method:
    how = {"n_predict": new_tokens, "temperature": 0, "cache_prompt": False, "ignore_eos": not until_end}

    def run(prompt: list[int]) -> Answer:
        start = time.perf_counter()
        body = json.dumps(how | {"prompt": prompt, "return_tokens": True}).encode()
        request = urllib.request.Request(f"{url}/completion", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        spent = time.perf_counter() - start
        tokens, timings = answer["tokens"], answer["timings"]
        steps = len(tokens) - timings.get("draft_n_accepted", 0)
        return Answer(tokens, len(tokens), steps, spent, timings["predicted_ms"] / 1e3)

    return run
