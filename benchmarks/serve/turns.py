"""What does prefix reuse save? A conversation with one engine that keeps what it read, and with one that keeps nothing.

Prints the time to the first token of each turn and the tokens that were not read anew. The texts have to agree.

    python -m benchmarks.serve.turns --target smollm2-135m-instruct
"""

import argparse

import eagle_jax
from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from eagle_jax.api import Engine, Model, Result

QUESTIONS = (
    "What is photosynthesis?",
    "Why are most leaves green?",
    "How does a leaf get its water?",
    "What do plants do at night?",
    "Can plants live without soil?",
    "What is a fern?",
    "How old can trees become?",
    "Why do some trees lose their leaves?",
    "What do bees have to do with plants?",
    "Name a plant that eats insects.",
)


def converse(model: Model, budget: int, arguments: argparse.Namespace) -> list[Result]:
    """Answers to the questions, each behind the whole conversation so far."""
    messages: list[dict[str, str]] = []
    results: list[Result] = []
    with Engine(model, rows=1, max_tokens=arguments.max_tokens, prefix_cache_bytes=budget) as engine:
        engine.submit("Hello.", max_new_tokens=4).result()
        for turn in range(arguments.turns):
            messages.append({"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]})
            results.append(engine.submit(messages, max_new_tokens=arguments.new_tokens).result())
            messages.append({"role": "assistant", "content": results[-1].text})
    return results


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--target", default="toy", help="folder, name or hub name (%(default)s)")
    arguments.add_argument("--turns", type=int, default=10, help="of the conversation (%(default)s)")
    arguments.add_argument("--new-tokens", type=int, default=100, help="longest answer (%(default)s)")
    arguments.add_argument("--max-tokens", type=int, default=2048, help="of prompt and answer (%(default)s)")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target)
    kept, anew = (converse(model, budget, options) for budget in (1 << 30, 0))
    rows = [
        (
            turn,
            one.prompt_tokens,
            one.stats.cached_tokens,
            *(1000 * each.stats.first_token_seconds for each in (one, other)),
        )
        for turn, (one, other) in enumerate(zip(kept, anew, strict=True), start=1)
    ]
    columns = ("turn", "prompt tokens", "not read anew", "ms to first token", "without reuse")
    show(f"A conversation of {len(rows)} turns, one row", columns, rows)
    if [one.token_ids for one in kept] != [other.token_ids for other in anew]:
        raise ValueError("texts differ with and without reuse")


if __name__ == "__main__":
    begin(main)
