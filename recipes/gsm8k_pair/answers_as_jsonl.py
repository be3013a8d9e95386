"""Turns the target's answers into conversations that `eagle-jax train` reads, a line of JSON each.

    python recipes/gsm8k_pair/answers_as_jsonl.py --target eagle_jax/pair/target \
        --out runs/gsm8k_pair/answers.jsonl runs/gsm8k_pair/greedy.npz runs/gsm8k_pair/sampled.npz

An answer that was cut off is marked as such (`"finish_reason": "length"`): training learns no end there that the
target never wrote. Drawn tokens are kept as text, which may be encoded as others: what the target makes of the text is
what a head learns, whatever the text.
"""

import argparse
import json
import pathlib
from typing import Any

import make_answers
import numpy as np
import transformers

from eagle_jax.training.data import Example


def record(example: Example, tokenizer: Any) -> dict[str, Any]:
    """Question, answer, and whether the answer ended."""
    first = int(np.argmax(example.answer))
    said = (example.tokens[:first], example.tokens[first:])
    question, answer = (tokenizer.decode(tokens, skip_special_tokens=True) for tokens in said)
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    ended = int(example.tokens[-1]) == tokenizer.eos_token_id
    return {"messages": chat, "finish_reason": "stop" if ended else "length"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Turn the target's answers into conversations.")
    parser.add_argument("answers", type=pathlib.Path, nargs="+", help=".npz files written by make_answers.py")
    parser.add_argument("--target", type=pathlib.Path, required=True, help="folder written by export_target.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="conversations, .jsonl")
    args = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.target)
    examples = [example for path in args.answers for example in make_answers.load(path)]
    lines = [json.dumps(record(example, tokenizer)) for example in examples]
    args.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} conversations in {args.out}")


if __name__ == "__main__":
    main()
