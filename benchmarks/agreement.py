"""How often does a head guess the target's own next token, step by step, on conversations?

Teacher-forced, over the assistant's tokens: the first step reads the target's features, every later one what the step
before made. "guessed" is the share of tokens whose most likely successor by the target is also the head's.

    eagle-jax regenerate QUESTIONS.jsonl --out held_out.jsonl
    python benchmarks/agreement.py held_out.jsonl --head eagle3
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from common import begin, table

import eagle_jax
from eagle_jax.converters import load_head, load_target, resolve
from eagle_jax.loading.folders import SHIPPED_HEADS
from eagle_jax.training import data, prepare
from eagle_jax.training.loss import Objective
from eagle_jax.training.update import accepted_length, evaluate, without_params


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("files", nargs="+", help="conversations, in any form that training reads")
    arguments.add_argument("--target", default=None, help="folder or hub name; default: the shipped one")
    arguments.add_argument("--head", nargs="+", default=["eagle1", "eagle3"], help="folders, or shipped heads")
    arguments.add_argument("--steps", type=int, default=6, help="draft steps (default: %(default)s)")
    arguments.add_argument("--length", type=int, default=512, help="tokens in a row, and of the longest conversation")
    arguments.add_argument("--batch", type=int, default=8, help="rows at once (default: %(default)s)")
    options = arguments.parse_args()
    tokenizer = eagle_jax.load(options.target).tokenizer
    target = load_target(
        eagle_jax.loading.folders.PAIR / "target" if options.target is None else resolve(options.target)
    )
    examples, report = prepare.prepare(
        options.files, tokenizer, vocab_size=target.config.vocab_size, length=options.length, over_long="cut"
    )
    rows = data.pack(examples, options.length, 0, bos=tokenizer.bos_token_id)
    objective = Objective(steps=options.steps, noise=0.0)
    lines = []
    for name in options.head:
        head = load_head(SHIPPED_HEADS.get(name) or resolve(name), target)
        params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), head.params)
        found = evaluate(params, without_params(head), target, rows, batch=options.batch, objective=objective)[1]
        shares = np.asarray(found.agreement)
        lines.append((name, *(f"{share:.3f}" for share in shares), f"{accepted_length(shares):.2f}"))
    steps = [f"step {step + 1}" for step in range(options.steps)]
    print(table(("head", *steps, "tokens a pass of a chain"), lines))
    print(f"{report.kept} conversations, {report.answer_tokens:,} tokens of the assistant's")


if __name__ == "__main__":
    begin(main)
