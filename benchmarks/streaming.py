"""What does it cost to look at an answer while it is being made, and does it hang on the vocabulary?

Streams random models whose tables of tokens differ in size, with a look after every pass, every fourth and every 32nd.
Prints the least time of a token, the prompt's reading included.

    python benchmarks/streaming.py
"""

import argparse
import time

from common import begin, table
from random_model import random_model

import eagle_jax

VOCABULARIES, LOOKS = (2048, 32000, 128256), (1, 4, 32)
PROMPT, TOKENS, RUNS = list(range(20)), 33, 4


def milliseconds(streamed: eagle_jax.Model, cycles: int) -> float:
    """A token takes so long."""
    took = []
    for _ in range(RUNS):
        start = time.perf_counter()
        list(eagle_jax.stream(streamed, PROMPT, max_new_tokens=TOKENS, drafter="none", cycles=cycles))
        took.append(time.perf_counter() - start)
    return 1e3 * min(took) / TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    lines = []
    for size in VOCABULARIES:
        streamed, _ = random_model(size, 1024, 4, options.dtype, queries=2)
        lines.append([f"{size:,}", *(f"{milliseconds(streamed, cycles):.2f} ms" for cycles in LOOKS)])
    header = [f"a look every {cycles} passes" if cycles > 1 else "a look every pass" for cycles in LOOKS]
    print(table(["tokens", *header], lines))


if __name__ == "__main__":
    begin(main)
