"""How fast is an engine for one client and for many, beside one with a single slot and beside plain decoding?

Every client asks its next question when it has its answer. The engines lie in one process and take turns: all clients
of one, then of the next, several times over; the fastest turn counts.

    python -m benchmarks.serve.clients --questions QUESTIONS.jsonl --target smollm2-135m-instruct --dtype bfloat16
"""

import itertools
import threading
import time

import eagle_jax
from benchmarks.common.command import begin, numbers, parser, prompts
from benchmarks.common.tables import show
from eagle_jax import api

ENGINES = {"auto": ("auto", None), "one slot": ("auto", 1), "plain": ("none", None)}  # drafter, and slots


def main() -> None:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--slots", type=int, default=8, help="%(default)s")
    arguments.add_argument("--clients", type=numbers, default=(1, 2, 4, 8), help="1,2,4,8 unless said")
    arguments.add_argument("--each", type=int, default=3, help="questions of a client in a turn (%(default)s)")
    arguments.add_argument("--rounds", type=int, default=3, help="%(default)s")
    arguments.add_argument("--dtype", default="bfloat16", help="%(default)s")
    arguments.add_argument("--quantize", help="int8 or int4")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype, quantize=options.quantize)
    questions = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    room = max(map(len, questions)) + options.new_tokens + 1
    engines = {
        name: api.Engine(model, rows=slots or options.slots, max_tokens=room, drafter=drafter)
        for name, (drafter, slots) in ENGINES.items()
    }
    try:
        rows = []
        for clients in options.clients:
            speeds = dict.fromkeys(engines, 0.0)
            for _, (name, engine) in itertools.product(range(options.rounds), engines.items()):
                if clients == 1 or engine.load.rows > 1:
                    speed = speed_of(engine, questions, clients, options.each, options.new_tokens)
                    speeds[name] = max(speeds[name], speed)
            shown = [speed or "" for speed in speeds.values()]
            rows.append((clients, *shown, speeds["auto"] / speeds["plain"], steps_of(engines["auto"], clients)))
        title = f"{options.target}, {options.quantize or options.dtype}: tokens/s, answers of {options.new_tokens}"
        show(title, ("clients", *engines, "auto of plain", "auto's steps"), rows)
    finally:
        for engine in engines.values():
            engine.close(drain=False)


def speed_of(engine: api.Engine, questions: list[list[int]], clients: int, each: int, new_tokens: int) -> float:
    """Tokens a second, over all clients, from the first question to the last answer."""
    tokens: list[int] = []

    def ask(client: int) -> None:
        for turn in range(each):
            question = questions[(client + turn * clients) % len(questions)]
            result = engine.submit(question, max_new_tokens=new_tokens, ignore_eos=True).result()
            tokens.append(len(result.token_ids))

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(tokens) / (time.perf_counter() - start)


def steps_of(engine: api.Engine, clients: int) -> str:
    """What a step of so many answers is."""
    rows, drafter = engine.by_load.for_rows(clients)
    return f"{rows} rows, {drafter.shape.nodes} nodes each"


if __name__ == "__main__":
    begin(main)
