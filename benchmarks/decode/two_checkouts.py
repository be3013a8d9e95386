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
import sys
import tempfile
from typing import Any

# Another checkout has no module of this one's: what `main` alone needs is imported there.

PRECISIONS = {dtype: {"dtype": dtype} for dtype in ("float32", "bfloat16")}
PRECISIONS |= {quantize: {"dtype": "float32", "quantize": quantize} for quantize in ("int8", "int4")}
TREES: tuple[Any, ...] = (None, (6, 2, 2), (6, 4, 1), (6, 0.15))  # None decodes plainly
TOKENS = 64
PROMPT = [{"role": "user", "content": "Explain why the sky is blue, and why it is red in the evening."}]


def serve(precision: str, model: str | None = None, head: str | None = None) -> None:
    """Reads the number of a tree from each line, decodes with it, and prints the milliseconds of a step."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes where errors go
    os.environ["EAGLE_JAX_TARGET"] = "toy"  # what an older checkout loads where nothing is said
    import eagle_jax

    loaded = eagle_jax.load(model, head, **PRECISIONS[precision])
    print("true", file=answers, flush=True)
    for line in sys.stdin:
        tree = TREES[int(line)]
        how: dict[str, Any] = {"drafter": "none"} if tree is None else {"tree": tree}
        stats = eagle_jax.generate(loaded, PROMPT, max_new_tokens=TOKENS, **how).stats
        steps = stats.steps if hasattr(stats, "steps") else stats.cycles  # an older checkout's
        print(1e3 * stats.decode_seconds / steps, file=answers, flush=True)


def make_head(model: str, folder: str) -> None:
    """A random EAGLE-3 head of a target's sizes, which drafts 8,192 tokens."""
    import jax

    from eagle_jax.configs.heads import Eagle3Config
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
            make_head(model, folder)
            pair = [model, folder]
        lines = []
        for precision in options.precisions.split(","):
            lines += rows(precision, sides, pair, options)
    columns = ("weights", "tree", "before, ms", "after, ms", "after / before", "median of the ratios")
    show(f"Least of {options.rounds} answers", columns, lines)


def rows(precision: str, sides: dict[str, pathlib.Path], pair: list[str], options: argparse.Namespace) -> list[list]:
    """A line for each tree, of the least of all rounds."""
    from benchmarks.common.worker import Worker

    lines = []
    with contextlib.ExitStack() as stack:
        command = [options.python, str(pathlib.Path(__file__).resolve()), "--serve", precision, *pair]
        workers = [Worker(str(checkout), command, {"PYTHONPATH": str(checkout)}) for checkout in sides.values()]
        for worker in workers:
            stack.enter_context(contextlib.closing(worker))
        for tree, named in enumerate(TREES):
            for worker in workers:
                worker.ask(tree)  # compiles
            runs = [[worker.ask(tree) for worker in workers] for _ in range(options.rounds)]
            before, after = (min(side) for side in zip(*runs, strict=True))
            middle = statistics.median(after / before for before, after in runs)
            lines.append([precision, str(named or "plain"), before, after, after / before, middle])
            print(*lines[-1], file=sys.stderr, flush=True)
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        from benchmarks.common.command import begin

        begin(main)
