"""Turns the target's answers into conversations that `eagle-jax train` reads, a line of JSON each.

    python recipes/gsm8k_pair/answers_as_jsonl.py --target eagle_jax/pair/target \
        --out runs/gsm8k_pair/answers.jsonl runs/gsm8k_pair/greedy.npz runs/gsm8k_pair/sampled.npz

An answer that was cut off is left out: training would learn an end there that the target never wrote. So is one whose
text becomes other tokens than were drawn.
"""

import argparse
import json
import pathlib
from typing import Any

import make_answers
import numpy as np
import transformers

from eagle_jax.training.data import Example


def messages(example: Example, tokenizer: Any) -> list[dict[str, str]] | None:
    """Question and answer as text; None if the answer does not end, or becomes other tokens when encoded again."""
    first = int(np.argmax(example.answer))
    said = (example.tokens[:first], example.tokens[first:])
    question, answer = (tokenizer.decode(tokens, skip_special_tokens=True) for tokens in said)
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    again = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
    return chat if list(again) == example.tokens.tolist() else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Turn the target's answers into conversations.")
    parser.add_argument("answers", type=pathlib.Path, nargs="+", help=".npz files written by make_answers.py")
    parser.add_argument("--target", type=pathlib.Path, required=True, help="folder written by export_target.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="conversations, .jsonl")
    args = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.target)
    examples = [example for path in args.answers for example in make_answers.load(path)]
    chats = [messages(example, tokenizer) for example in examples]
    lines = [json.dumps({"messages": chat}) for chat in chats if chat is not None]
    args.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} of {len(examples)} conversations in {args.out}")


if __name__ == "__main__":
    main()
