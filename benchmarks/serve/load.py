"""Is every answer of a busy server the one that its request would get alone, and does the server keep its memory?

Starts `eagle-jax serve` with the toy pair in float32, lets many clients stream from it at once for a while, and
compares every answer with the offline one for its seed. Exits with 1 if one differs or is lost.

    python -m benchmarks.serve.load
    python -m benchmarks.serve.load --mixed
    python -m benchmarks.serve.load --system 400 --prefix-cache-bytes 0
"""

import argparse
import asyncio
import dataclasses
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

import numpy as np
import openai

import eagle_jax
from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from eagle_jax.api import Processing

QUESTIONS = [
    f"{name} has {3 + 2 * i} {things} and buys {4 + i} more. How many {things} does {name} have?"
    for i, name in enumerate(("Tom", "Anna", "Sam", "Mia"))
    for things in ("apples", "pencils", "books", "coins")
]
SAMPLING = [{"temperature": temperature, "top_p": top_p} for temperature, top_p in ((0, 1), (0.7, 1), (1, 0.95))]
# Further options of the requests of `--mixed`, in turns.
MIXED: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.4, "frequency_penalty": 0.3, "min_tokens": 12},
    {"json_schema": {"type": "object", "properties": {"total": {"type": "integer", "minimum": 0, "maximum": 999}}}},
    {"bad_words": ["has", "buys"]},
    {"choices": ["yes", "no", "nobody knows"]},
    {"regex": "[A-Z][a-z ]{5,40}[.]"},
    {"logit_bias": {20: 2.0, 30: -5.0}, "top_logprobs": 3, "logprobs": True},
)
SYSTEM = "You count things for a shop and answer in one short sentence. "
Request = tuple[dict[str, Any], str]  # a body, and its answer offline
STREAMED = {"model": "toy", "stream": True, "stream_options": {"include_usage": True}}


@dataclasses.dataclass
class Counts:
    """What the clients received."""

    answers: int = 0
    tokens: int = 0
    wrong: int = 0
    lost: int = 0
    first_token: list[float] = dataclasses.field(default_factory=list)


def requests(count: int, mixed: tuple[dict[str, Any], ...], system: int) -> list[Request]:
    """Different requests with their answers offline, whose prompts begin with the same `system` characters."""
    model, common = eagle_jax.load("toy", dtype="float32"), (SYSTEM * (system // len(SYSTEM) + 1))[:system]
    asked: list[Request] = []
    for i in range(count):
        messages = [{"role": "user", "content": common + QUESTIONS[i % len(QUESTIONS)]}]
        how = SAMPLING[i % len(SAMPLING)] | {"seed": i} | mixed[i % len(mixed)]
        tokens = (24, 48, 96)[i // 3 % 3]
        result = eagle_jax.generate(model, messages, max_new_tokens=tokens, **how)
        own = {name: how.pop(name) for name in list(how) if name in Processing.__annotations__}
        asked.append((how | {"messages": messages, "max_tokens": tokens, "extra_body": own}, result.text))
    return asked


async def client(number: int, api: openai.AsyncOpenAI, asked: list[Request], until: float, counts: Counts) -> None:
    """Sends one request after another."""
    while time.monotonic() < until:
        request, number = asked[number % len(asked)], number + 7
        try:
            await send(api, request, counts)
        except openai.APIError as error:
            counts.lost += 1
            print(f"lost: {type(error).__name__}: {error} ({error.__cause__!r})", file=sys.stderr)


async def send(api: openai.AsyncOpenAI, request: Request, counts: Counts) -> None:
    start, text, first = time.monotonic(), "", None
    async for chunk in await api.chat.completions.create(**STREAMED, **request[0]):
        if chunk.usage is not None:
            counts.tokens += chunk.usage.completion_tokens
        elif chunk.choices[0].delta.content:
            first = first or time.monotonic() - start
            text += chunk.choices[0].delta.content
    counts.answers += 1
    counts.wrong += text != request[1]
    counts.first_token.append(first or time.monotonic() - start)


def metric(url: str, name: str) -> float:
    """A metric of the server, summed over its models."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"eagle_jax_{name}{{"))


async def load(url: str, pid: int, asked: list[Request], options: argparse.Namespace) -> tuple[Counts, list, list]:
    """All clients for a while; resident MiB and busy slots every second."""
    counts, used, busy, statm = Counts(), [], [], pathlib.Path(f"/proc/{pid}/statm")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=120.0) as api:
        until = time.monotonic() + options.seconds
        clients = asyncio.gather(*(client(i, api, asked, until, counts) for i in range(options.clients)))
        while not clients.done():
            await asyncio.sleep(1.0)
            used.append(int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20)
            busy.append(await asyncio.to_thread(metric, url, "slots_busy"))
        await clients
    return counts, used, busy


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, default=64, help="%(default)s")
    arguments.add_argument("--seconds", type=float, default=120.0, help="%(default)s")
    arguments.add_argument("--slots", type=int, default=8, help="%(default)s")
    arguments.add_argument("--tree", default="4,2,1", help="auto drafts nothing for so many slots on a CPU")
    arguments.add_argument("--answers", type=int, default=48, help="different requests (%(default)s)")
    arguments.add_argument(
        "--mixed", action="store_true", help="requests with penalties, bans and structured output too"
    )
    arguments.add_argument("--system", type=int, default=0, help="characters that all prompts begin with (%(default)s)")
    arguments.add_argument("--prefix-cache-bytes", type=int, default=2**30, help="%(default)s")
    options = arguments.parse_args()
    asked = requests(options.answers, MIXED if options.mixed else ({},), options.system)
    command = [sys.executable, "-m", "eagle_jax", "serve", "--target", "toy", "--dtype", "float32", "--port", "0"]
    command += ["--max-tokens", "512", "--prefix-cache-bytes", str(options.prefix_cache_bytes)]
    command += ["--slots", str(options.slots), "--max-queue", str(options.clients), "--tree", options.tree]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stderr or ())
        url = next((address[0] for line in lines if (address := re.search(r"http://[\d.]+:\d+", line))), None)
        if url is None:
            raise RuntimeError("the server ended before it was ready")
        start = time.monotonic()
        counts, used, busy = asyncio.run(load(url, process.pid, asked, options))
        seconds = time.monotonic() - start
        steps = metric(url, "steps_total")
        process.send_signal(signal.SIGTERM)

    tenth = max(1, len(used) // 10)
    rows = [
        ("clients, slots, seconds", f"{options.clients}, {options.slots}, {seconds:.0f}"),
        ("answers", counts.answers),
        ("answers that differ from the offline ones", counts.wrong),
        ("answers lost", counts.lost),
        ("tokens/s, all clients together", counts.tokens / seconds),
        ("mean acceptance length", (counts.tokens - counts.answers) / max(steps, 1)),
        ("time to first token, p50 and p95", "{:.2f} s, {:.2f} s".format(*np.percentile(counts.first_token, (50, 95)))),
        ("slots busy, mean", float(np.mean(busy))),
        ("resident memory, first and last tenth", f"{np.mean(used[:tenth]):.0f} MiB, {np.mean(used[-tenth:]):.0f} MiB"),
    ]
    show("Server under load", ("what", "figure"), rows)
    return int(bool(counts.wrong or counts.lost))


if __name__ == "__main__":
    begin(main)
