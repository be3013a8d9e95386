"""Is a decoding step of this checkout slower than one of another? Each runs in a process of its own; they take turns.

    python -m benchmarks.decode.two_checkouts --before ../before --after . --model ./SmolLM2-135M-Instruct

Prints the least milliseconds of a step, plain and with trees, by dtype, their ratio, and the median of the ratios of
answers that follow one another, which a machine whose speed changes disturbs less. With `--model` a random EAGLE-3 head
of the target's width drafts, of which only the cost counts; without it, the shipped pair's own head.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

# Another checkout has no module of this one's: what `main` alone needs is imported there.

PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantize": "int8"},
    "int4": {"dtype": "float32", "quantize": "int4"},
}
TREES: tuple[Any, ...] = (None, (6, 2, 2), (6, 4, 1), (6, 0.3))  # None decodes plainly
TOKENS = 64
ANSWER = "milliseconds"  # begins a line with an answer; libraries may print other lines
PROMPT = [{"role": "user", "content": "Explain why the sky is blue, and why it is red in the evening."}]


def serve(model: str | None, head: str | None, precision: str) -> None:
    """Reads the number of a tree from each line, decodes with it, and prints the milliseconds of a step."""
    import eagle_jax

    loaded = eagle_jax.load(model, head, **PRECISIONS[precision])
    for line in sys.stdin:
        tree = TREES[int(line)]
        how: dict[str, Any] = {"drafter": "none"} if tree is None else {"tree": tree}
        stats = eagle_jax.generate(loaded, PROMPT, max_new_tokens=TOKENS, **how).stats
        print(ANSWER, 1e3 * stats.decode_seconds / stats.cycles, flush=True)


def make_head(model: str, folder: str) -> None:
    """A random EAGLE-3 head of a target's sizes, which drafts 8,192 tokens."""
    import jax

    from eagle_jax.config import Eagle3Config
    from eagle_jax.converters import load_target, save_head
    from eagle_jax.models.eagle3 import Head3

    target = load_target(pathlib.Path(model))
    layers, depth = target.config, target.config.num_hidden_layers
    config = Eagle3Config(
        layers=dataclasses.replace(layers, num_hidden_layers=1, tie_word_embeddings=False),
        target_hidden_size=layers.hidden_size,
        draft_vocab_size=min(8192, layers.vocab_size),
        taps=(2, depth // 2, depth - 3),
    )
    save_head(Head3.init(config, jax.random.key(0)), pathlib.Path(folder), target=target)


@contextlib.contextmanager
def started(checkout: pathlib.Path, python: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """This script in a process that imports a checkout's package."""
    process = subprocess.Popen(
        [python, str(pathlib.Path(__file__).resolve()), *options],
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=checkout,
    )
    try:
        yield process
    finally:
        process.communicate()
    if process.returncode:
        raise SystemExit(f"{checkout}: the process ended with {process.returncode}; its error stands above")


def answered(process: subprocess.Popen[str], tree: int) -> float:
    """Milliseconds of a step with a tree, by one of the processes.

    Raises:
        SystemExit: the process ended.
    """
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has no pipes; start it with started()")
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{tree}\n")
        process.stdin.flush()
    for line in process.stdout:
        if line.startswith(ANSWER):
            return float(line.split()[1])
    raise SystemExit(f"a process ended with {process.wait()} before it answered; its error stands above")


def main() -> None:
    from benchmarks.common import command
    from benchmarks.common.tables import show

    parser = command.parser(__doc__)
    parser.add_argument("--before", type=pathlib.Path, required=True, help="a checkout")
    parser.add_argument("--after", type=pathlib.Path, default=pathlib.Path(), help="another; this one if left out")
    parser.add_argument("--python", default=sys.executable, help="that runs both")
    parser.add_argument("--model", type=pathlib.Path, help="folder of a target; the shipped pair if left out")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--rounds", type=int, default=15, help="how often each side decodes")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds={options.rounds}; give a number of at least 1")
    if unknown := set(options.precisions.split(",")) - set(PRECISIONS):
        parser.error(f"--precisions: {', '.join(sorted(unknown))}; give some of {', '.join(PRECISIONS)}")
    options.before, options.after = options.before.resolve(), options.after.resolve()
    sides = {"before": options.before, "after": options.after}
    for name, checkout in sides.items():
        if not (checkout / "eagle_jax" / "__init__.py").is_file():
            parser.error(f"--{name}={checkout} holds no eagle_jax/__init__.py; give a checkout of the project")
    with tempfile.TemporaryDirectory() as folder:
        pair: list[str] = []
        if options.model:
            model = str(options.model.resolve())
            with started(options.after, options.python, "--make-head", model, folder):
                pass
            pair = ["--model", model, "--head", folder]
        lines = []
        for precision in options.precisions.split(","):
            lines += rows(precision, sides, pair, options)
    columns = ("weights", "tree", "before, ms", "after, ms", "after / before", "median of the ratios")
    show(f"Least of {options.rounds} answers", columns, lines)


def rows(precision: str, sides: dict[str, pathlib.Path], pair: list[str], options: argparse.Namespace) -> list[list]:
    """A line for each tree, of the least of all rounds."""
    lines = []
    with contextlib.ExitStack() as stack:
        command = (options.python, "--serve", precision, *pair)
        processes = [stack.enter_context(started(checkout, *command)) for checkout in sides.values()]
        for tree, named in enumerate(TREES):
            for process in processes:
                answered(process, tree)  # compiles
            runs = [[answered(process, tree) for process in processes] for _ in range(options.rounds)]
            before, after = (min(side) for side in zip(*runs, strict=True))
            middle = statistics.median(after / before for before, after in runs)
            lines.append([precision, str(named or "plain"), before, after, after / before, middle])
            print(*lines[-1], file=sys.stderr, flush=True)
    return lines


def one_side(arguments: list[str]) -> None:
    """What a process of its own does."""
    parser = argparse.ArgumentParser()
    for name in ("--serve", "--model", "--head"):
        parser.add_argument(name)
    parser.add_argument("--make-head", nargs=2)
    options = parser.parse_args(arguments)
    if options.make_head:
        make_head(*options.make_head)
    else:
        serve(options.model, options.head, options.serve)


if __name__ == "__main__":
    if {"--serve", "--make-head"} & set(sys.argv):
        one_side(sys.argv[1:])
    else:
        from benchmarks.common.command import begin

        begin(main)
