"""Does a long answer stream at a constant cost? What the host does for each chunk, and the steps that make it.

One answer of thousands of tokens that nothing ends is streamed in several ways, each after one that compiles:

    plain   nothing is asked for but text
    stop    with a stop string that never comes
    top     with the log-probabilities of the 20 likeliest tokens in the place of each

Each table has a line for every 512 tokens: *steps* are the milliseconds of a chunk that the loop took, *host* are those
until the chunk is there, and *event* those that make a chat's event of it. *call* are those of reading the chunk as a
part of one call of a function, which is as long as the answer.

    python -m benchmarks.serve.long_answers
"""

import argparse
import dataclasses
import json
import time
from typing import Any

import eagle_jax
from benchmarks.common.command import begin, parser, tree
from benchmarks.common.tables import show
from eagle_jax import api
from eagle_jax.chat.tool_calls import CallReader
from eagle_jax.chat.tool_formats import FORMATS
from eagle_jax.protocols.base import PendingResponse
from eagle_jax.protocols.calls import chat_call
from eagle_jax.protocols.chat import Chat
from eagle_jax.requests.options import options_for
from eagle_jax.requests.request import requests_for
from eagle_jax.requests.ticket import Ticket

PART = 512  # tokens of a line
PROMPT = "Tell me a long story."
NEVER = "\x00 never \x00"
WAYS: dict[str, dict[str, Any]] = {"plain": {}, "stop": {"stop": NEVER}, "top": {"logprobs": True, "top_logprobs": 20}}
COLUMNS = ("tokens", "chunks", "tokens a chunk", "steps, ms", "host, ms", "event, ms", "call, ms")


@dataclasses.dataclass
class Spent:
    """Seconds spent on the chunks of one part of an answer."""

    chunks: int = 0
    tokens: int = 0
    steps: float = 0.0
    host: float = 0.0
    event: float = 0.0
    call: float = 0.0


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--target", default="toy", help="folder, name or hub name (%(default)s)")
    arguments.add_argument("--tokens", type=int, default=4096, help="of the answer (%(default)s)")
    arguments.add_argument("--steps", type=int, default=1, help="between two polls (%(default)s)")
    arguments.add_argument("--drafter", default="auto")
    arguments.add_argument("--tree", type=tree, default="auto", help="nodes,depth,top-k (%(default)s)")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target)
    # beyond its own context a model writes nonsense, which takes as long
    model = dataclasses.replace(model, context=max(model.context, options.tokens + 256))
    for way, asked in WAYS.items():
        parts = [Spent() for _ in range(-(-options.tokens // PART))]
        for _ in range(2):  # the first one compiles
            parts = measure(model, options, asked)
        title = f"{way}: {options.tokens:,} tokens of {options.target}, {options.steps} step(s) a chunk"
        show(title, COLUMNS, [line_of(place, spent) for place, spent in enumerate(parts)])


def measure(model: api.Model, options: argparse.Namespace, asked: dict[str, Any]) -> list[Spent]:
    """Streams one answer; what each part of it took."""
    parts = [Spent() for _ in range(-(-options.tokens // PART))]
    how = dict(max_new_tokens=options.tokens, ignore_eos=True, temperature=1.0, seed=1, steps=options.steps)
    chunks = eagle_jax.stream(model, PROMPT, drafter=options.drafter, tree=options.tree, **how, **asked)
    chat, pending, reader = Chat(), pending_response(model, asked), CallReader(FORMATS["hermes"], {"write": {}})
    reader.add('<tool_call>{"name": "write", "arguments": {"text": "')
    before, decoded, start = 0, 0.0, time.perf_counter()
    for chunk in chunks:
        arrived = time.perf_counter()
        chat.chunk_choices(pending, chunk)
        written = time.perf_counter()
        reader.add(json.dumps(chunk.text)[1:-1])
        read = time.perf_counter()
        if chunk.result is None:  # the last one has the whole answer
            spent = parts[before // PART]
            spent.chunks, spent.tokens = spent.chunks + 1, spent.tokens + len(chunk.token_ids)
            if before:  # with the first token comes the prompt
                spent.steps += chunk.seconds - decoded
                spent.host += arrived - start - (chunk.seconds - decoded)
            spent.event, spent.call = spent.event + written - arrived, spent.call + read - written
        before, decoded, start = before + len(chunk.token_ids), chunk.seconds, time.perf_counter()
    return parts


def pending_response(model: api.Model, asked: dict[str, Any]) -> PendingResponse:
    """A chat's request for the same answer, as a server has it."""
    call = chat_call({"messages": [{"role": "user", "content": PROMPT}], "stream": True})
    values = dict(max_new_tokens=1, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    options = options_for(1, stop=(asked["stop"],) if "stop" in asked else (), **values)
    requests = requests_for(model, [PROMPT], options, [1])
    tickets = [Ticket(request, model.tokenizer, lambda _: None) for request in requests]
    return PendingResponse(id="chatcmpl-0", created=0, name="toy", call=call, tickets=tickets)


def line_of(place: int, spent: Spent) -> tuple[object, ...]:
    """A line of a table: what a chunk took in this part of the answer."""
    each = (1000 * seconds / max(spent.chunks, 1) for seconds in (spent.steps, spent.host, spent.event, spent.call))
    return (f"{place * PART}-{(place + 1) * PART}", spent.chunks, spent.tokens / max(spent.chunks, 1), *each)


if __name__ == "__main__":
    begin(main)
