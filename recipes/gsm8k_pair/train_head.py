"""Trains a head for the pair on the data set's text and, where given, on text that the target wrote.

python recipes/gsm8k_pair/train_head.py --data train.jsonl --target eagle_jax/pair/target --out eagle_jax/pair/head
"""

import argparse
import dataclasses
import pathlib

import conversations
import jax
import jax.numpy as jnp
import make_answers
import numpy as np
import shape
import transformers

import eagle_jax  # noqa: F401  (sets XLA flags before JAX starts)
from eagle_jax.converters import load_head, load_target, save_head
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.training import data, features, loop, vocabulary
from eagle_jax.training.loss import EAGLE3, Objective, Report

# First few draft steps, where an update costs a third; then the steps that drafting takes.
STAGES = {
    "eagle1": (
        Objective(steps=1, law_weight=1.0, feature_weight=1.0),
        Objective(steps=3, law_weight=1.0, feature_weight=0.5, decay=0.9, noise=0.05),
    ),
    "eagle3": (dataclasses.replace(EAGLE3, steps=2), dataclasses.replace(EAGLE3, steps=5)),
}


class Reporter:
    """Prints the running loss and keeps the newest head on disk."""

    def __init__(self, out: pathlib.Path, seconds: float = 30.0):
        self.out, self.seconds, self.printed, self.saved = out, seconds, 0.0, 0.0

    def __call__(self, head: DraftHead, progress: loop.Progress) -> None:
        if progress.seconds - self.printed >= self.seconds:
            self.printed = progress.seconds
            print(
                f"{progress.seconds:6.0f} s  update {progress.updates}  epoch {progress.epoch}  "
                + line(progress.report),
                flush=True,
            )
        if progress.seconds - self.saved >= 8 * self.seconds:
            self.saved = progress.seconds
            save(head, self.out)


def save(head: DraftHead, folder: pathlib.Path) -> None:
    """Writes the head in bfloat16, in the published layout, without the target's embedding."""
    rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16), head.params)
    save_head(dataclasses.replace(head, params=rounded), folder)
    (folder / "model.safetensors").chmod(0o644)  # the library writes files that only their owner reads


def begin(method: str, target: LM, ids: np.ndarray | None) -> DraftHead:
    """An untrained head; that of EAGLE-3 begins in the target's last residual stream, with its output matrix.

    Args:
        ids: the tokens that it drafts; None drafts all.
    """
    if method == "eagle1":
        head = Head.init(shape.HEAD, jax.random.key(0), np.dtype("float32"))
        return head if ids is None else head.trimmed(target, ids)
    size = shape.TARGET.vocab_size if ids is None else len(ids)
    config = dataclasses.replace(shape.HEAD3, draft_vocab_size=size)
    params = Head3.init(config, jax.random.key(0), np.dtype("float32")).params
    last = jnp.eye(config.target_hidden_size)
    output = target.params["embed_tokens"]["embedding"]
    params |= {
        "fc": {"weight": params["fc"]["weight"].at[:, -len(last) :].add(last)},
        "norm": target.params["norm"],
        "lm_head": {"weight": output if ids is None else output[ids]},
    }
    return Head3(params=params, config=config, vocabulary=None if ids is None else jnp.asarray(ids, jnp.int32))


def line(report: Report) -> str:
    """Parts of the loss on one line, a number per draft step."""
    parts = {"feature": report.feature, "law": report.law, "agreement": report.agreement}
    return "  ".join(f"{name} {' '.join(f'{float(v):.3f}' for v in values)}" for name, values in parts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a head of the GSM8K pair.")
    parser.add_argument("--method", choices=STAGES, default="eagle1", help="kind of head")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="train.jsonl of openai/grade-school-math")
    parser.add_argument("--target", type=pathlib.Path, required=True, help="folder written by export_target.py")
    parser.add_argument(
        "--answers", type=pathlib.Path, nargs="*", default=[], help=".npz files written by make_answers.py"
    )
    parser.add_argument("--unseen", type=pathlib.Path, help="answers to held-out questions, for evaluation")
    parser.add_argument("--book", type=int, default=2500, help="conversations of the data set itself to mix in")
    parser.add_argument("--start", type=pathlib.Path, help="folder of an earlier head to go on from")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write; rewritten every few minutes")
    parser.add_argument("--minutes", type=float, nargs=2, default=(9.0, 0.0), help="wall-clock budget of each stage")
    parser.add_argument("--batch", type=int, default=16, help="rows per update")
    parser.add_argument("--length", type=int, default=256, help="tokens per row")
    parser.add_argument("--rate", type=float, nargs=2, default=(5e-3, 2.5e-3), help="peak learning rate of each stage")
    parser.add_argument("--steps", type=int, nargs=2, help="draft steps trained in each stage; default: the method's")
    parser.add_argument("--feature-weight", type=float, nargs=2, help="of each stage; default: the method's")
    parser.add_argument("--draft-vocab", type=int, help="draft only this many tokens, the most frequent in answers")
    parser.add_argument("--held-out", type=int, default=200, help="conversations kept for evaluation")
    args = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.target)
    target = load_target(args.target, "float32")
    training, held_out = conversations.split(conversations.read(args.data), args.held_out)
    examples = [data.tokenize(chat, tokenizer) for chat in training[: args.book]]
    for path in args.answers:
        examples += make_answers.load(path)
    unseen = make_answers.load(args.unseen) if args.unseen else [data.tokenize(chat, tokenizer) for chat in held_out]
    rows, evaluation = (data.pack(part, args.length, seed=0, bos=tokenizer.bos_token_id) for part in (examples, unseen))
    print(f"{len(examples)} conversations in {len(rows)} rows, {int(rows.filled.sum()):,} tokens", flush=True)

    ids = None
    if args.draft_vocab is not None:
        ids, share = vocabulary.most_frequent(rows, args.draft_vocab, target.config.vocab_size)
        print(f"{len(ids)} draft tokens cover {share:.4f} of the answers", flush=True)
    head = begin(args.method, target, ids)
    if args.start is not None:
        head = load_head(args.start, target, "float32")
    hidden, hidden_unseen = (features.compute(target, part, args.batch, taps=head.taps) for part in (rows, evaluation))
    for stage, (objective, minutes, rate) in enumerate(zip(STAGES[args.method], args.minutes, args.rate, strict=True)):
        if minutes > 0:
            if args.steps is not None:
                objective = dataclasses.replace(objective, steps=args.steps[stage])
            if args.feature_weight is not None:
                objective = dataclasses.replace(objective, feature_weight=args.feature_weight[stage])
            print(f"{objective}, {minutes} minutes", flush=True)
            head = loop.train(
                head, target, rows, hidden, objective,
                minutes=minutes, batch=args.batch, rate=rate, seed=stage, observe=Reporter(args.out),
            )  # fmt: skip
            save(head, args.out)
            report = loop.evaluate(head, target, evaluation, hidden_unseen, steps=6, batch=args.batch)
            print(f"held out: {line(report)}", flush=True)


if __name__ == "__main__":
    main()
