"""Is every answer of a busy server the one that its request would get alone, and does the server keep its memory?

Starts `eagle-jax serve` with the shipped pair in float32, lets many clients stream from it at once for a while,
compares every answer with the offline one for its seed, and stops the server with SIGTERM while answers are under way.
"""

import argparse
import asyncio
import dataclasses
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import openai
from common import begin, table

import eagle_jax

QUESTIONS = [
    f"{name} has {3 + 2 * i} {things} and buys {4 + i} more. How many {things} does {name} have?"
    for i, name in enumerate(("Tom", "Anna", "Sam", "Mia"))
    for things in ("apples", "pencils", "books", "coins")
]


@dataclasses.dataclass(frozen=True)
class Job:
    """One question with its options; there are as many as there are offline answers."""

    question: str
    seed: int
    temperature: float
    top_p: float
    max_tokens: int

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.question}]


@dataclasses.dataclass
class Seen:
    """What the clients saw."""

    answers: int = 0
    tokens: int = 0
    wrong: int = 0
    lost: int = 0
    busy: int = 0
    to_first: list[float] = dataclasses.field(default_factory=list)


def jobs(count: int) -> list[Job]:
    kinds = [(0.0, 1.0), (0.7, 1.0), (1.0, 0.95)]
    return [
        Job(QUESTIONS[i % len(QUESTIONS)], i, *kinds[i % len(kinds)], max_tokens=(24, 48, 96)[i // 3 % 3])
        for i in range(count)
    ]


def offline(asked: list[Job]) -> dict[Job, str]:
    model = eagle_jax.load(dtype="float32")
    columns = {name: [getattr(job, name) for job in asked] for name in ("temperature", "top_p", "seed")}
    results = eagle_jax.generate(
        model, [job.messages for job in asked], max_new_tokens=[job.max_tokens for job in asked], **columns
    )
    return {job: result.text for job, result in zip(asked, results, strict=True)}


async def client(number: int, api: openai.AsyncOpenAI, right: dict[Job, str], until: float, seen: Seen) -> None:
    """Asks one question after another, each with a seed of its own."""
    asked = list(right)
    turn = number
    while time.monotonic() < until:
        job, turn = asked[turn % len(asked)], turn + 7
        try:
            await ask(api, job, right[job], seen)
        except openai.RateLimitError:
            seen.busy += 1
            await asyncio.sleep(0.5)
        except openai.APIError:
            seen.lost += 1


async def ask(api: openai.AsyncOpenAI, job: Job, right: str, seen: Seen) -> None:
    start, text, first = time.monotonic(), "", None
    stream = await api.chat.completions.create(
        model="shipped",
        messages=job.messages,  # type: ignore[arg-type]
        seed=job.seed,
        temperature=job.temperature,
        top_p=job.top_p,
        max_tokens=job.max_tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.usage is not None:
            seen.tokens += chunk.usage.completion_tokens
        elif chunk.choices[0].delta.content:
            first = first or time.monotonic() - start
            text += chunk.choices[0].delta.content
    seen.answers += 1
    seen.wrong += text != right
    seen.to_first.append(first or time.monotonic() - start)


def memory(pid: int) -> float:
    """Resident MiB of a process."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def metric(url: str, name: str) -> float:
    """What the server counts under this name, all models together."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"eagle_jax_{name}{{"))


async def load(
    url: str, pid: int, right: dict[Job, str], options: argparse.Namespace
) -> tuple[Seen, list[float], list[float]]:
    """All clients for a while, beside a look at memory and slots every second."""
    seen, used, busy = Seen(), [], []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=120.0) as api:
        until = time.monotonic() + options.seconds
        clients = asyncio.gather(*(client(i, api, right, until, seen) for i in range(options.clients)))
        while not clients.done():
            await asyncio.sleep(1.0)
            used.append(memory(pid))
            if time.monotonic() < until:
                busy.append(await asyncio.to_thread(metric, url, "slots_busy"))
        await clients
    return seen, used, busy


async def drained(url: str, process: subprocess.Popen[str], right: dict[Job, str]) -> tuple[int, int, int]:
    """SIGTERM while eight answers are under way: how many came whole and right, how many new ones were refused."""
    seen, asked = Seen(), list(right)[:8]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=120.0) as api:
        answers = [asyncio.ensure_future(ask(api, job, right[job], seen)) for job in asked]
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        refused = 0
        try:
            await ask(api, asked[0], right[asked[0]], Seen())
        except openai.InternalServerError as error:
            refused += error.status_code == 503
        await asyncio.gather(*answers)
    return seen.answers - seen.wrong, refused, await asyncio.to_thread(process.wait, 60)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--seconds", type=float, default=120.0)
    arguments.add_argument("--slots", type=int, default=8)
    arguments.add_argument("--tree", default="4,2,1", help="auto drafts nothing for so many slots on a CPU")
    arguments.add_argument("--answers", type=int, default=48, help="different requests; each has an offline answer")
    options = arguments.parse_args()
    right = offline(jobs(options.answers))
    command = [sys.executable, "-m", "eagle_jax", "serve", "--dtype", "float32", "--port", "0"]
    command += ["--slots", str(options.slots), "--max-queue", str(options.clients), "--max-tokens", "256"]
    command += ["--tree", options.tree]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended before it began"
            found = re.search(r"http://[\d.]+:\d+", line)
        url = found[0]
        began = time.monotonic()
        seen, used, busy = asyncio.run(load(url, process.pid, right, options))
        seconds = time.monotonic() - began
        passes = metric(url, "passes_total")
        whole, refused, code = asyncio.run(drained(url, process, right))

    first, last = (np.percentile(seen.to_first, share) for share in (50, 95))
    tenth = max(1, len(used) // 10)
    rows = [
        ("clients, slots, seconds", f"{options.clients}, {options.slots}, {seconds:.0f}"),
        ("answers", seen.answers),
        ("answers that differ from the offline ones", seen.wrong),
        ("answers lost", seen.lost),
        ("requests told to come again (429)", seen.busy),
        ("tokens/s, all clients together", f"{seen.tokens / seconds:.0f}"),
        ("tokens per pass and answer", f"{(seen.tokens - seen.answers) / max(passes, 1):.2f}"),
        ("time to first token, p50 and p95", f"{first:.2f} s, {last:.2f} s"),
        ("slots busy, mean", f"{np.mean(busy):.1f}"),
        ("resident memory, first and last tenth", f"{np.mean(used[:tenth]):.0f} MiB, {np.mean(used[-tenth:]):.0f} MiB"),
        ("after SIGTERM: of 8 answers under way, right", whole),
        ("after SIGTERM: new request refused with 503, exit code", f"{'yes' if refused else 'no'}, {code}"),
    ]
    print(table(("what", "figure"), rows))
    sys.exit(bool(seen.wrong or seen.lost or code or whole != 8))


if __name__ == "__main__":
    begin(main)
