"""What is the mean acceptance length against the prompt's length, with a window of the head's attention and without?

Each question is asked behind others, as many as make a prompt of that length; what stands before them is cut off. So
every length ends in the same questions. The answers are greedy, and the same for all windows.

    python -m benchmarks.decode.draft_window --questions QUESTIONS.jsonl --windows 256 512
"""

import argparse
from collections.abc import Sequence

import eagle_jax
from benchmarks.common.command import begin, numbers, parser, prompts
from benchmarks.common.tables import progress, show
from benchmarks.decode.acceptance import mean_length

LENGTHS = (256, 512, 1024, 2048, 4096)


def main() -> None:
    options = arguments().parse_args()
    plain = eagle_jax.load(options.target, options.head)
    asked = prompts(plain, options.questions, options.limit, options.new_tokens, options.every)
    longest = min(sum(map(len, asked)), plain.context - options.new_tokens)
    lengths = [length for length in options.lengths if length <= longest]
    if not lengths:
        raise ValueError(
            f"no length of {options.lengths} fits: questions and context make prompts of up to {longest} tokens; ask "
            "for shorter ones with --lengths"
        )
    tree: object = "published" if options.tree is None else options.tree
    rows: list[tuple[object, ...]] = []
    for window in (None, *options.windows):
        model = eagle_jax.load(options.target, options.head, head_config={"sliding_window": window})  # None has none
        reached = [acceptance(model, cut(asked, length), tree, options.new_tokens) for length in lengths]
        rows.append(("none" if window is None else window, *reached))
    columns = ("window", *(f"{length} tokens" for length in lengths))
    show(f"Mean acceptance length by length of the prompt, {len(asked)} questions, greedy", columns, rows)


def arguments() -> argparse.ArgumentParser:
    listed = parser(__doc__, new_tokens=128)
    listed.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of the prompts (%(default)s)")
    listed.add_argument("--windows", type=int, nargs="+", default=[512], help="rows that the head sees (%(default)s)")
    listed.add_argument("--tree", type=numbers, help="nodes,depth,top-k (the method's published)")
    return listed


def cut(asked: Sequence[list[int]], length: int) -> list[list[int]]:
    """Each prompt behind those that come before it, round and round, cut to its last `length` tokens."""
    whole = []
    for last in range(len(asked)):
        before = [*asked[last + 1 :], *asked[: last + 1]]
        whole.append([token for prompt in before for token in prompt][-length:])
    return whole


def acceptance(model: eagle_jax.Model, asked: list[list[int]], tree: object, new_tokens: int) -> float:
    """Mean acceptance length over the answers."""
    results = eagle_jax.generate(model, asked, max_new_tokens=new_tokens, tree=tree, progress=progress)
    return mean_length(results)


if __name__ == "__main__":
    begin(main)
