"""Is a step of this checkout slower than one of another? Both are measured in processes of their own, taken in turns.

    python benchmarks/two_checkouts.py --before ../before --after . --model ./SmolLM2-135M-Instruct

Prints the least milliseconds of a decoding step, plainly and with trees, by dtype, and their ratio. With `--model` a
random EAGLE-3 head of the target's width drafts, of which only the cost counts; without, the shipped pair's own head.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from common import begin, table

PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantize": "int8"},
    "int4": {"dtype": "float32", "quantize": "int4"},
}
TREES: tuple[Any, ...] = (None, (6, 2, 2), (6, 4, 1), (6, 0.3))  # None decodes plainly
TOKENS, RUNS = 64, 5
PROMPT = [{"role": "user", "content": "Explain why the sky is blue, and why it is red in the evening."}]


def measure(model: str | None, head: str | None, precision: str) -> dict[str, float]:
    """Milliseconds of a step in this process, by tree."""
    import eagle_jax

    loaded = eagle_jax.load(model, head, **PRECISIONS[precision])
    found = {}
    for tree in TREES:
        how: dict[str, Any] = {"drafter": "none"} if tree is None else {"tree": tree}
        runs = [eagle_jax.generate(loaded, PROMPT, max_new_tokens=TOKENS, **how) for _ in range(RUNS + 1)][1:]
        found[str(tree or "plain")] = min(1e3 * run.stats.decode_seconds / run.stats.cycles for run in runs)
    return found


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


def ran(checkout: pathlib.Path, python: str, *options: str) -> str:
    """What this script prints in a process that imports a checkout's package."""
    command = [python, str(pathlib.Path(__file__).resolve()), *options]
    path = f"{checkout.resolve()}{os.pathsep}{pathlib.Path(__file__).resolve().parent}"
    made = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, cwd=checkout)
    if made.returncode:
        raise SystemExit(f"{checkout} failed: {made.stderr.strip().splitlines()[-1] if made.stderr else 'no output'}")
    return made.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, required=True, help="a checkout")
    parser.add_argument("--after", type=pathlib.Path, default=pathlib.Path(), help="another; this one if left out")
    parser.add_argument("--python", default=sys.executable, help="that runs both")
    parser.add_argument("--model", help="folder of a target; the shipped pair if left out")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side is measured")
    options = parser.parse_args()
    sides = {"before": options.before, "after": options.after}
    for name, checkout in sides.items():
        if not (checkout / "eagle_jax" / "__init__.py").is_file():
            parser.error(f"--{name}={checkout} holds no eagle_jax/__init__.py; give a checkout of the project")
    with tempfile.TemporaryDirectory() as folder:
        given = []
        if options.model:
            ran(options.after, options.python, "--make-head", options.model, folder)
            given = ["--model", options.model, "--head", folder]
        lines = []
        for precision in options.precisions.split(","):
            lines += rows(precision, sides, given, options)
            print("\n".join(" ".join(line) for line in lines[-len(TREES) :]), file=sys.stderr, flush=True)
    print(table(["weights", "tree", "before, ms", "after, ms", "after / before"], lines))


def rows(precision: str, sides: dict[str, pathlib.Path], given: list[str], options: argparse.Namespace) -> list[list]:
    """A line for each tree, of the least of all rounds."""
    least: dict[tuple[str, str], float] = {}
    for _ in range(options.rounds):
        for side, checkout in sides.items():
            shown = ran(checkout, options.python, "--measure", precision, *given)
            for tree, taken in json.loads(shown.splitlines()[-1]).items():
                least[side, tree] = min(taken, least.get((side, tree), float("inf")))
    trees = dict.fromkeys(tree for _, tree in least)
    lines = []
    for tree in trees:
        before, after = (least[side, tree] for side in sides)
        lines.append([precision, tree, f"{before:.3f}", f"{after:.3f}", f"{after / before:.2f}"])
    return lines


def one_side(arguments: list[str]) -> None:
    """What a process of its own does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure")
    parser.add_argument("--model")
    parser.add_argument("--head")
    parser.add_argument("--make-head", nargs=2)
    options = parser.parse_args(arguments)
    if options.make_head:
        make_head(*options.make_head)
    else:
        print(json.dumps(measure(options.model, options.head, options.measure)))


if __name__ == "__main__":
    if {"--measure", "--make-head"} & set(sys.argv):
        one_side(sys.argv[1:])
    else:
        begin(main)
