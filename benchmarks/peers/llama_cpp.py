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
START = 60  # seconds that a server may take


@contextlib.contextmanager
def methods(
    binaries: pathlib.Path, file: pathlib.Path, new_tokens: int, *, until_end: bool, modes: Sequence[str] = MODES
) -> Iterator[dict]:
    """A server for each mode that this build knows, with as many threads as there are cores, as methods by name.

    Args:
        binaries: folder that holds `llama-server`.
        file: a GGUF file.
        modes: those asked for.

    Raises:
        ValueError: there is no server in the folder.
        ChildProcessError: it did not start; with its last line.
    """
    binary = binaries / "llama-server"
    if not binary.is_file():
        raise ValueError(f"{binaries} holds no llama-server; give the folder of llama.cpp's binaries")
    usage = subprocess.run([binary, "--help"], capture_output=True, text=True).stdout
    methods: dict[str, Method] = {}
    with contextlib.ExitStack() as stack:
        for mode in (mode for mode in modes if mode == "none" or mode in usage):
            options = [] if mode == "none" else ["--spec-type", mode]
            url = stack.enter_context(running(_command(binary, file, options), START))
            name = "llama.cpp plain" if mode == "none" else f"llama.cpp {mode}"
            methods[name] = _method(url, new_tokens, until_end=until_end)
        yield methods


def _command(binary: pathlib.Path, file: pathlib.Path, options: list[str]) -> list[str]:
    threads = str(os.cpu_count())
    command = [str(binary), "--model", str(file), "--port", "{port}", "--threads", threads, "--threads-batch", threads]
    return [*command, "--parallel", "1", "--ctx-size", "0", *options]


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
