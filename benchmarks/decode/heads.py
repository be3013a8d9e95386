"""Which of several heads of one target drafts best, as a chain and as a tree, and what does its step cost?

Acceptance lengths, greedy and at temperature 1 with the noise shared by drafter and target and without, are over all
questions, many at a time. Times are of greedy answers to some of them one by one, all heads and plain decoding in
turns.

    python -m benchmarks.decode.heads --questions QUESTIONS.jsonl runs/eagle3/head runs/dflash/head
    python -m benchmarks.decode.heads --questions QUESTIONS.jsonl --timed 0 causal=runs/jetspec/head
"""

import argparse
import dataclasses
import pathlib
from typing import Any

import jax

import eagle_jax
from benchmarks.common.command import begin, numbers, parser, prompts
from benchmarks.common.tables import progress, show
from benchmarks.common.turns import Method, in_turns, ours
from benchmarks.decode.acceptance import mean_length
from eagle_jax import api
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.methods.choice import drafter_for

# Temperature, and whether the drafter ranks its guesses with the noise that the target draws with.
SAMPLINGS = {"greedy": (0.0, True), "T=1": (1.0, True), "T=1, own noise": (1.0, False)}


def main() -> None:
    arguments = parser(__doc__, new_tokens=128)
    arguments.add_argument("heads", nargs="+", type=named, help="folders, or NAME=FOLDER")
    arguments.add_argument("--depth", type=int, default=6, help="of chain and tree, where a head drafts as far (6)")
    arguments.add_argument("--tree", type=numbers, default=(16, 4), help="nodes,top-k of the tree (16,4)")
    arguments.add_argument("--timed", type=int, default=8, help="questions whose answers are timed (%(default)s)")
    arguments.add_argument("--quantize", help="int8, int4, draft:int8, ..., as for eagle_jax.load")
    options = arguments.parse_args()
    if options.head is not None:
        raise ValueError("--head is not read here; give the heads behind the options")
    names = [name for name, _ in options.heads]
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"several heads are called {', '.join(twins)}; tell them apart by NAME=FOLDER")
    first = eagle_jax.load(options.target, options.heads[0][1], quantize=options.quantize)
    models = {name: api.with_head(first, folder, quantize=options.quantize) for name, folder in options.heads}
    asked = prompts(first, options.questions, options.limit, options.new_tokens, options.every)
    if not asked:
        raise ValueError(f"--questions {options.questions} has no question that is asked; expected one or more")
    cases = {(name, shape): policy for name in models for shape, policy in shapes(models[name], options).items()}
    lengths = {case: accepted(models[case[0]], policy, asked, options) for case, policy in cases.items()}
    methods: dict[Any, Method] = {"plain": ours(first, options.new_tokens, "none")}
    methods |= {case: ours(models[case[0]], options.new_tokens, "auto", policy) for case, policy in cases.items()}
    timed = in_turns(methods, asked[: options.timed], 1) if options.timed else {}
    rows = []
    for (name, shape), policy in cases.items():
        row = [name, millions(models[name]), f"{shape} of {policy.nodes}", *lengths[name, shape]]
        if timed:
            one, plain = timed[name, shape], timed["plain"]
            gain = one.speed("decoding") / plain.speed("decoding")
            row += [one.accepted / gain, gain, one.texts == plain.texts]
        rows.append(row)
    columns = ["head", "10^6 weights", "draft", *SAMPLINGS]
    columns += ["a step, in plain steps", "speedup", "same text as plain"] if timed else []
    of = f"{options.target or 'Shipped target'}, {options.quantize or 'as stored'}"
    show(f"{of}, {len(asked)} questions, {min(options.timed, len(asked))} timed", columns, rows)


def named(text: str) -> tuple[str, str]:
    """A head's name and its folder: what stands before "=", or the folder's name, of a run's `head` the run's."""
    name, equals, folder = text.rpartition("=")
    path = pathlib.Path(folder)
    return (name if equals else path.parent.name if path.name == "head" else path.name), folder


def shapes(model: eagle_jax.Model, options: argparse.Namespace) -> dict[str, DynamicTree]:
    """A chain and a tree as deep as asked for, or as the head drafts."""
    head, (nodes, width) = model.head, options.tree
    furthest = getattr(head, "num_drafted", None) or getattr(head, "num_heads", None) or options.depth
    depth = min(options.depth, furthest)
    return {"chain": DynamicTree(depth + 1, depth - 1, 1), "tree": DynamicTree(nodes, depth - 1, width)}


def accepted(model: eagle_jax.Model, policy: DynamicTree, asked: list[Any], options: argparse.Namespace) -> list[float]:
    """The mean acceptance length under each sampling: tokens of all answers' steps by their number."""
    lengths = []
    for temperature, coupled in SAMPLINGS.values():
        results = eagle_jax.generate(
            model,
            asked,
            max_new_tokens=options.new_tokens,
            temperature=temperature,
            seed=list(range(len(asked))),
            drafter=dataclasses.replace(drafter_for(model, "auto", policy), coupled=coupled),
            progress=progress,
        )
        lengths.append(mean_length(results))
    return lengths


def millions(model: eagle_jax.Model) -> float:
    return sum(leaf.size for leaf in jax.tree.leaves(model.head.stored_params)) / 1e6


if __name__ == "__main__":
    begin(main)
