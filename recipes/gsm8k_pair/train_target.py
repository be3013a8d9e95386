"""Trains the pair's target, a small Llama, on GSM8K conversations within a budget of wall-clock time.

    python recipes/gsm8k_pair/train_target.py --data train.jsonl --tokenizer runs/gsm8k_pair/tokenizer \
        --out runs/gsm8k_pair/target.npz --minutes 58
"""

import argparse
import functools
import itertools
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import conversations
import fast_llama
import jax
import jax.numpy as jnp
import make_answers
import numpy as np
import optax
import shape
import transformers

import eagle_jax  # noqa: F401  (sets XLA flags before JAX starts)
from eagle_jax.config import LlamaConfig
from eagle_jax.models.lm import LM
from eagle_jax.training import data, optimizer
from eagle_jax.training.settings import OptimizerConfig

QUESTION_WEIGHT = 0.5  # of a question's token in the loss; an answer's token counts 1
# of rate 1: an update is multiplied by the rate that the clock gives
RULE = OptimizerConfig(name="muon", rate=1.0, weight_decay=0.1, warmup=0, decay="constant", clip="norm", clip_at=1.0)
PARTS = 1000  # of the budget, in which the schedule counts as others do in updates


def weights(answer: jax.Array, filled: jax.Array) -> jax.Array:
    """Weight of each predicted token (all but a row's first)."""
    return jnp.where(answer, 1.0, QUESTION_WEIGHT)[:, 1:] * filled[:, 1:]


@functools.partial(jax.jit, static_argnames=("rule", "config"), donate_argnames=("params", "state"))
def train_step(params, state, tokens, answer, filled, rate, rule: optax.GradientTransformation, config: LlamaConfig):
    """One update; returns new parameters, new optimizer state and the weighted loss per token."""

    def loss(params):
        weight = weights(answer, filled)
        return jnp.sum(fast_llama.next_token_losses(params, tokens, config) * weight) / jnp.sum(weight)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = rule.update(gradients, state, params)
    return optax.apply_updates(params, jax.tree.map(lambda update: rate * update, updates)), state, value


@functools.partial(jax.jit, static_argnames="config")
def summed_losses(params, tokens, answer, filled, config: LlamaConfig):
    """Sums of loss and counts of tokens: (answers, everything)."""
    losses = fast_llama.next_token_losses(params, tokens, config)
    said, there = answer[:, 1:] & filled[:, 1:], filled[:, 1:]
    return jnp.stack([jnp.stack([jnp.sum(losses * part), jnp.sum(part)]) for part in (said, there)])


def held_out_loss(params: Any, rows: data.Rows, batch: int, config: LlamaConfig) -> tuple[float, float]:
    """Mean loss per token on (answers, everything), in nats."""
    sums = sum(
        np.asarray(summed_losses(params, b.tokens, b.answer, b.filled, config)) for b in rows.batches(batch, seed=0)
    )
    return tuple(float(total / count) for total, count in sums)


def endless(
    examples: list[data.Example], length: int, batch: int, first: int, bos: int
) -> Iterator[tuple[int, data.Rows]]:
    """Batches for ever: (epoch, rows), counted from `first`; every epoch packs anew."""
    for epoch in itertools.count(first):
        for rows in data.pack(examples, length, seed=epoch, bos=bos).batches(batch, seed=epoch):
            yield epoch, rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the pair's target, or a small model to draft for it.")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="train.jsonl of openai/grade-school-math")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder written by make_tokenizer.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="parameters, .npz; rewritten every few minutes")
    parser.add_argument("--minutes", type=float, default=58.0, help="wall-clock budget; the schedule ends with it")
    parser.add_argument("--batch", type=int, default=8, help="rows per update")
    parser.add_argument("--length", type=int, default=512, help="tokens per row")
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate of the matrices")
    parser.add_argument("--start", type=pathlib.Path, help=".npz of an earlier run to go on from")
    parser.add_argument("--first-epoch", type=int, default=0, help="number of the first epoch; it seeds the order")
    parser.add_argument("--held-out", type=int, default=200, help="conversations kept for evaluation")
    parser.add_argument("--shape", choices=shape.SHAPES, default="target", help="what to train")
    parser.add_argument("--answers", type=pathlib.Path, nargs="+", default=[], help="instead: files of make_answers.py")
    args = parser.parse_args()
    config = shape.SHAPES[args.shape]

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.tokenizer)
    training, held_out = conversations.split(conversations.read(args.data), args.held_out)
    examples = [example for path in args.answers for example in make_answers.load(path)]
    examples = examples or [data.tokenize(chat, tokenizer) for chat in training]
    kept_apart = [data.tokenize(chat, tokenizer) for chat in held_out]
    unseen = data.pack(kept_apart, args.length, seed=0, bos=tokenizer.bos_token_id)
    params = LM.init(config, jax.random.key(0), jnp.dtype("float32")).params
    if args.start is not None:
        params = jax.tree.map(jnp.asarray, shape.load(args.start))
    rule = optimizer.make(RULE, 1)
    settings = OptimizerConfig(rate=args.rate, warmup=PARTS // 50, decay="cosine", final=0.02)
    schedule = optimizer.rate_at(settings, PARTS)
    state = rule.init(params)
    print(f"{sum(p.size for p in jax.tree.leaves(params)):,} parameters, {len(examples)} conversations", flush=True)

    start = saved = reported = time.monotonic()
    budget, seen, running = 60 * args.minutes, 0, None
    stream = endless(examples, args.length, args.batch, args.first_epoch, tokenizer.bos_token_id)
    for step, (epoch, rows) in enumerate(stream):
        progress = (time.monotonic() - start) / budget
        if progress >= 1:
            break
        rate = schedule(PARTS * progress)
        params, state, loss = train_step(params, state, rows.tokens, rows.answer, rows.filled, rate, rule, config)
        running = float(loss) if running is None else 0.95 * running + 0.05 * float(loss)
        seen += int(rows.filled.sum())
        now = time.monotonic()
        if now - reported > 20:
            speed = seen / (now - start)
            print(
                f"{now - start:6.0f} s  step {step}  epoch {epoch}  loss {running:.3f}  {speed:.0f} tokens/s",
                flush=True,
            )
            reported = now
        if now - saved > 240:
            shape.save(args.out, params)
            answers, everything = held_out_loss(params, unseen, args.batch, config)
            print(f"held out: {answers:.3f} per answer token, {everything:.3f} per token", flush=True)
            saved = now
    shape.save(args.out, params)
    answers, everything = held_out_loss(params, unseen, args.batch, config)
    print(f"done: {step} steps, {seen:,} tokens; held out: {answers:.3f} per answer token, {everything:.3f} per token")


if __name__ == "__main__":
    main()
