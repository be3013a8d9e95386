"""How often does a head guess the target's own next token, draft step by draft step, on conversations?

Teacher-forced, over the assistant's tokens: the first draft step reads the target's features, every later one the
output of the one before. The figure is the share of tokens whose most likely successor by the target is the head's too.

    eagle-jax regenerate QUESTIONS.jsonl --out held_out.jsonl
    python -m benchmarks.train.agreement held_out.jsonl --head eagle3
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import eagle_jax
from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from eagle_jax.training import data, prepare
from eagle_jax.training.objective import Objective
from eagle_jax.training.update import accepted_length, evaluate, without_params


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="+", help="conversations, in any form that training reads")
    arguments.add_argument("--target", help="folder or hub name; default: the shipped one")
    arguments.add_argument("--head", nargs="+", default=["eagle1", "eagle3"], help="folders, or shipped heads")
    arguments.add_argument("--steps", type=int, default=6, help="draft steps (%(default)s)")
    arguments.add_argument("--length", type=int, default=512, help="tokens in a row, and of the longest conversation")
    arguments.add_argument("--batch", type=int, default=8, help="rows at once (%(default)s)")
    options = arguments.parse_args()
    objective, lines = Objective(steps=options.steps, noise=0.0), []
    for name in options.head:
        model = eagle_jax.load(options.target, name, draft_dtype="float32")
        target = dataclasses.replace(model.target, params=model.target.stored_params)
        examples, report = prepare.prepare(
            options.files, model.tokenizer, vocab_size=target.config.vocab_size, length=options.length, over_long="cut"
        )
        rows = data.pack(examples, options.length, 0, bos=model.tokenizer.bos_token_id)
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), model.head.stored_params)
        head = without_params(model.head)
        result = evaluate(params, head, target, rows, batch=options.batch, objective=objective)[1]
        shares = np.asarray(result.agreement)
        lines.append((name, *(f"{share:.3f}" for share in shares), float(accepted_length(shares))))
    steps = (f"step {step + 1}" for step in range(options.steps))
    title = f"{report.kept} conversations, {report.answer_tokens:,} tokens of the assistant"
    show(title, ("head", *steps, "mean acceptance length of a chain"), lines)


if __name__ == "__main__":
    begin(main)
