"""Do plain chats keep their speed while many clients ask for forms that nobody can make, and does the server end?

Starts `eagle-jax serve`, streams plain chats alone, then the same beside clients that send one hostile form after
another, and at last sends SIGTERM while such forms are made. A long form that can be made follows each attack: it is
answered when all hostile forms before it are over. Exits with 1 where chats keep less than 0.9 of their
speed, an ordinary form gets no answer, or the server takes more than 5 s to end.

    python -m benchmarks.serve.hostile_forms
"""

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import openai

from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show

MODEL = "hostile"  # what the server calls it
NUMBER = itertools.count()  # no two forms are the same, or the first one's automaton would serve all
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me a long story."}], "temperature": 0.0}


def hostile() -> dict[str, Any]:
    """A form that nobody can make, unlike all before."""
    number = next(NUMBER)
    nested: dict[str, Any] = {"type": "string", "pattern": f"(a|b)*a(a|b){{{20 + number}}}"}
    kinds: list[dict[str, Any]] = [
        {"guided_regex": f"(a|b)*a(a|b){{{30 + number}}}"},
        {"guided_regex": f"([a-z]{{1,{900 + number}}} ?){{1,900}}"},
        {"guided_json": {"type": "array", "items": nested, "maxItems": 1000}},
        {"guided_json": {"type": "array", "items": {"type": "object"}, "minItems": 10_000 + number}},
        {"guided_json": {"properties": {f"p{i}{number}": {"anyOf": [{}, {"$ref": "#"}]} for i in range(12)}}},
    ]
    return kinds[number % len(kinds)]


async def chat(api: openai.AsyncOpenAI, until: float, tokens: int) -> int:
    """Streams chats; the tokens of all of them."""
    count = 0
    while time.monotonic() < until:
        how = CHAT | {"model": MODEL, "stream": True, "max_tokens": tokens, "extra_body": {"ignore_eos": True}}
        async for chunk in await api.chat.completions.create(**how, stream_options={"include_usage": True}):
            count += chunk.usage.completion_tokens if chunk.usage else 0
    return count


async def attack(url: str, clients: int, seconds: float) -> collections.Counter[str]:
    """Clients that send one hostile form after another; how they were answered."""
    statuses: collections.Counter[str] = collections.Counter()

    async def one(api: openai.AsyncOpenAI) -> None:
        while True:
            try:
                await api.chat.completions.create(**CHAT, model=MODEL, max_tokens=4, extra_body=hostile())
                statuses["answered"] += 1
            except openai.APIStatusError as error:
                statuses[str(error.status_code)] += 1
                if error.status_code == 500:
                    print(error, file=sys.stderr)
                await asyncio.sleep(2.0 if error.status_code in (429, 503) else 0.0)
            except openai.APIConnectionError:  # the server has ended
                return

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=120.0) as api:
        with contextlib.suppress(TimeoutError):  # whoever waits for an answer then goes away
            await asyncio.wait_for(asyncio.gather(*(one(api) for _ in range(clients))), seconds)
    return statuses


async def answered(api: openai.AsyncOpenAI, schema: dict[str, Any]) -> float:
    """Sends a form as often as it is refused; the seconds to its answer."""
    start = time.monotonic()
    while True:
        try:
            await api.chat.completions.create(**CHAT, model=MODEL, max_tokens=4, extra_body={"guided_json": schema})
            return time.monotonic() - start
        except openai.APIStatusError:
            await asyncio.sleep(0.5)


async def ordinary(api: openai.AsyncOpenAI, until: float, seconds: list[float]) -> None:
    """Sends small forms, unlike all before."""
    while time.monotonic() < until:
        seconds.append(await answered(api, {"type": "integer", "minimum": 0, "maximum": 1000 + next(NUMBER)}))
        await asyncio.sleep(1.0)


async def long(api: openai.AsyncOpenAI) -> float:
    """Sends a form that takes more than a moment to make, unlike all before; the seconds to its answer."""
    number = next(NUMBER) % 100
    return await answered(api, {"type": "array", "items": {"type": "string", "maxLength": 500 + number}, "maxItems": 3})


def attackers(url: str, options: argparse.Namespace, seconds: float) -> subprocess.Popen[str]:
    """A process with all hostile clients; it leaves the processor to the server, as clients elsewhere do."""
    command = [sys.executable, "-m", "benchmarks.serve.hostile_forms", "--attack", url, "--seconds", str(seconds)]
    command += ["--clients", str(options.clients)]
    return subprocess.Popen(["nice", "-n", "19", *command], stdout=subprocess.PIPE, text=True)


async def measure(url: str, process: subprocess.Popen[str], options: argparse.Namespace) -> dict[str, Any]:
    statuses: collections.Counter[str] = collections.Counter()
    seconds: list[float] = []
    speeds: list[float] = []
    longs: list[float] = []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=600.0) as api:
        for is_attacked in (False, True) * options.turns:
            if is_attacked:
                clients = attackers(url, options, options.seconds + 8)
                await asyncio.sleep(5.0)  # until they are there
            start = time.monotonic()
            until = start + options.seconds
            forms = [ordinary(api, until, seconds)] if is_attacked else []
            counts = await asyncio.gather(*(chat(api, until, options.new_tokens) for _ in range(options.chats)), *forms)
            speeds.append(sum(counts[: options.chats]) / (time.monotonic() - start))
            if is_attacked:
                out, _ = await asyncio.to_thread(clients.communicate)
                statuses.update(json.loads(out.splitlines()[-1]))
                longs.append(await long(api))
        clients = attackers(url, options, 30.0)
        await asyncio.sleep(8.0)
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        await asyncio.to_thread(process.wait, 60)
        ended = time.monotonic() - start
        clients.communicate()
    return {"speeds": speeds, "statuses": statuses, "seconds": seconds, "longs": longs, "ended": ended}


def main() -> int:
    arguments = parser(__doc__, new_tokens=96, questions=False)
    arguments.add_argument("--clients", type=int, default=64, help="that send hostile forms (%(default)s)")
    arguments.add_argument("--chats", type=int, default=2, help="clients that chat (%(default)s)")
    arguments.add_argument("--seconds", type=float, default=20.0, help="%(default)s")
    arguments.add_argument("--turns", type=int, default=2, help="%(default)s")
    arguments.add_argument("--attack", metavar="URL", help="only send hostile forms there")
    options = arguments.parse_args()
    if options.attack:
        print(json.dumps(asyncio.run(attack(options.attack, options.clients, options.seconds))))
        return 0
    command = [sys.executable, "-m", "eagle_jax", "serve", "--port", "0", "--max-tokens", "512", "--name", MODEL]
    command += ["--max-queue", "256", *(["--target", options.target] if options.target else [])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stderr or ())
        url = next((address[0] for line in lines if (address := re.search(r"http://[\d.]+:\d+", line))), None)
        if url is None:
            raise RuntimeError("the server ended before it was ready")
        threading.Thread(target=lambda: sys.stderr.writelines(lines), daemon=True).start()
        found = asyncio.run(measure(url, process, options))
    alone, beside = found["speeds"][::2], found["speeds"][1::2]
    kept = sum(beside) / sum(alone)
    rows = [
        ("plain chats alone, tokens/s", ", ".join(f"{speed:.1f}" for speed in alone)),
        (f"beside {options.clients} clients with hostile forms", ", ".join(f"{speed:.1f}" for speed in beside)),
        ("of the speed is kept", f"{kept:.2f}"),
        ("hostile forms, by status", ", ".join(f"{name}: {count}" for name, count in found["statuses"].items())),
        ("ordinary forms", f"{len(found['seconds'])}, {max(found['seconds'], default=0):.1f} s at most, with retries"),
        ("a long form after each attack, s", ", ".join(f"{one:.1f}" for one in found["longs"])),
        ("SIGTERM while forms are made: ended after", f"{found['ended']:.1f} s"),
    ]
    show("Hostile forms", ("what", "figure"), rows)
    return int(kept < 0.9 or found["ended"] > 5 or not found["seconds"])


if __name__ == "__main__":
    begin(main)
