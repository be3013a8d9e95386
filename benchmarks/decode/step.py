"""What does a decoding step cost, by what it verifies, reads and reserves?

    python -m benchmarks.decode.step nodes     # rows of the forward pass, drafting, and the whole step
    python -m benchmarks.decode.step weights   # float and quantized weights, beside the bandwidth of a copy
    python -m benchmarks.decode.step cache     # slots of the cache that are reserved and not used

Every figure is the least of several; cases take turns, since other programs only ever add. `cache` exits with 1 if one
size of the cache makes a step more than a fifth slower than another.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import eagle_jax
from benchmarks.common.chart import PUBLISHED
from benchmarks.common.command import begin, numbers, parser
from benchmarks.common.synthetic import NAMES, Shape, make
from benchmarks.common.tables import show
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.tree import TreeShape
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.timing import DraftOnly, VerifyOnly

K = TypeVar("K")
COPIES = 8  # one after the other in one timing, so that waiting for the last of them hardly counts
STEPS = 8  # between two polls of `cache`


def least(cases: Mapping[K, Callable[[], float]], repeats: int) -> dict[K, float]:
    """The least seconds of each case."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(repeats + 1):  # the first compiles
        for case, run in cases.items():
            best[case] = min(best[case], run())
    return best


def step(model: eagle_jax.Model, prompt: list[int], drafter: Any, options: argparse.Namespace) -> Callable[[], float]:
    """Decodes, and returns the seconds of a step."""

    def run() -> float:
        stats = eagle_jax.generate(model, prompt, max_new_tokens=options.new_tokens, drafter=drafter).stats
        return stats.decode_seconds / stats.steps

    return run


def pair(options: argparse.Namespace, quantize: str | None) -> tuple[eagle_jax.Model, list[int]]:
    if options.target is not None:
        how = {"dtype": options.dtype} if quantize is None else {"quantize": quantize}
        model = dataclasses.replace(eagle_jax.load(options.target, **how), tokenizer=None, stop_ids=())
        return model, np.random.default_rng(0).integers(0, model.target.config.vocab_size, options.prompt).tolist()
    synthetic = make(Shape.of(options.shape), PUBLISHED, quantize=quantize, dtype=options.dtype)
    return synthetic.model, synthetic.chart.prompt(options.prompt)


def nodes(options: argparse.Namespace) -> None:
    model, prompt = pair(options, options.quantize)
    eagle = Eagle(head=model.head, policy=DynamicTree(*options.tree))
    size, depth = eagle.shape.nodes, eagle.shape.depth
    drafters: dict[Any, Any] = {"plain": "none", "draft": DraftOnly(eagle), "whole": eagle}
    for count in sorted({*options.nodes, size}):
        drafters[count] = VerifyOnly(TreeShape(nodes=count, depth=min(count - 1, depth)))
    cases = {name: step(model, prompt, drafter, options) for name, drafter in drafters.items()}
    best = least(cases, options.repeats)
    plain, draft = best["plain"], best["draft"] - best["plain"]
    parts = {"plain step": plain, f"drafting {options.tree}": draft, "whole step": best["whole"]}
    parts |= {f"verifying {count} nodes": best[count] for count in drafters if isinstance(count, int)}
    parts["rest of the whole step"] = best["whole"] - best[size] - draft
    rows = [(name, 1e3 * seconds, seconds / plain) for name, seconds in parts.items()]
    title = f"{options.target or f'Shape {options.shape}'}, {options.dtype}, {options.quantize or 'float'}"
    show(title, ("part", "ms", "in plain steps"), rows)


def weights(options: argparse.Namespace) -> None:
    copied, rows = copy_bandwidth(options.copied), []
    for name in options.weights:
        model, prompt = pair(options, None if name == "float" else name)
        config = model.target.config
        tokens = options.prompt + options.new_tokens // 2
        cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * tokens
        read = weight_bytes(model.target.params) + cache * model.target.activations.itemsize
        seconds = least({name: step(model, prompt, "none", options)}, options.repeats)[name]
        del model  # the next one may need its memory
        rows.append((name, read / 1e9, 1e3 * seconds, 1 / seconds, read / seconds / 1e9, read / seconds / copied))
        columns = ("weights", "GB a step", "ms a step", "tokens/s", "GB/s", "of a copy's bandwidth")
        show(f"Shape {options.shape}, {options.dtype}, plain decoding; a copy: {copied / 1e9:.0f} GB/s", columns, rows)


def copy_bandwidth(size: int) -> float:
    """Bytes a second of `x + 1` with `size` bytes, read and written ones counted."""
    array, program = jnp.arange(size // 4, dtype=jnp.float32), jax.jit(lambda x: x + 1)

    def run() -> float:
        start, copy = time.perf_counter(), array
        for _ in range(COPIES):
            copy = program(copy)
        jax.block_until_ready(copy)
        return time.perf_counter() - start

    return 2 * COPIES * array.nbytes / min(run() for _ in range(6))


def weight_bytes(params: Any) -> float:
    """Of all weights, as they are held; of the embedding a step reads a row."""
    return sum(
        leaf.size * jax.dtypes.itemsize_bits(leaf.dtype) / 8
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if "embed_tokens" not in jax.tree_util.keystr(path)
    )


def cache(options: argparse.Namespace) -> int:
    model = dataclasses.replace(eagle_jax.load("toy"), tokenizer=None, stop_ids=(), context=2 * max(options.reserved))
    prompt = np.random.default_rng(0).integers(0, model.target.config.vocab_size, options.prompt).tolist()
    ways: dict[str, dict[str, Any]] = {"plain": {"drafter": "none"}, f"EAGLE, tree {options.tree}": {}}

    def run(way: str, reserved: int) -> float:
        how = {"tree": options.tree} | ways[way]
        chunks = eagle_jax.stream(model, prompt, max_new_tokens=reserved, steps=STEPS, **how)
        before, after = [chunk.seconds for chunk in itertools.islice(chunks, 4)][2:]
        return (after - before) / STEPS

    cases = {case: (lambda case=case: run(*case)) for case in itertools.product(ways, options.reserved)}
    best = least(cases, options.repeats)
    rows = [(way, *(1e3 * best[way, reserved] for reserved in options.reserved)) for way in ways]
    show("Shipped pair, ms a step", ("step", *(f"{count} tokens reserved" for count in options.reserved)), rows)
    return int(any(max(row[1:]) > 1.2 * min(row[1:]) for row in rows))


def main() -> int | None:
    arguments = parser(__doc__)
    questions = arguments.add_subparsers(required=True, metavar="question")

    def question(run: Callable[[argparse.Namespace], int | None], new_tokens: int, repeats: int) -> Any:
        own = questions.add_parser(run.__name__)
        own.set_defaults(run=run)
        own.add_argument("--prompt", type=int, default=40, help="tokens of the prompt (%(default)s)")
        own.add_argument("--new-tokens", type=int, default=new_tokens, help="%(default)s")
        own.add_argument("--repeats", type=int, default=repeats, help="%(default)s")
        own.add_argument("--dtype", default="bfloat16", help="%(default)s")
        return own

    for run in (nodes, weights):
        own = question(run, 128, 5)
        own.add_argument("--shape", default="1.1b", choices=NAMES, help="of a synthetic pair (%(default)s)")
        own.add_argument("--target", help="a pair by name, in the place of a synthetic one")
        if run is nodes:
            own.add_argument("--quantize", help="int8, int4, draft:int8, ..., as for eagle_jax.load")
            own.add_argument("--tree", type=numbers, default=(60, 7, 10), help="nodes,depth,top-k (%(default)s)")
            own.add_argument("--nodes", type=numbers, default=(1, 4, 16, 60), help="%(default)s")
        else:
            own.add_argument("--weights", nargs="+", default=["float", "int8", "int4"], help="%(default)s")
            own.add_argument("--copied", type=int, default=2**28, help="bytes that a copy copies")
    own = question(cache, 0, 32)
    own.set_defaults(prompt=80)
    own.add_argument("--reserved", type=numbers, default=(128, 512, 2048, 8192), help="longest answers (%(default)s)")
    own.add_argument("--tree", type=numbers, default=(26, 5, 8), help="nodes,depth,top-k (%(default)s)")
    options = arguments.parse_args()
    return options.run(options)


if __name__ == "__main__":
    begin(main)
