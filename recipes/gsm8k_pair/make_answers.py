"""Lets the target answer the questions: what the head has to predict is the target's own text.

    python recipes/gsm8k_pair/make_answers.py --data train.jsonl --target eagle_jax/pair/target \
        --out runs/gsm8k_pair/answers.npz --count 1500
"""

import argparse
import pathlib
import time

import conversations
import numpy as np

import eagle_jax
from eagle_jax.training.data import Example


def answer(
    model: eagle_jax.Model, questions: list[str], seeds: list[int], temperature: float, batch: int
) -> list[Example]:
    """One answer each, by plain decoding; tokens are kept as they were drawn, not decoded and encoded again."""
    messages = [[{"role": "user", "content": question}] for question in questions]
    chats = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    results = eagle_jax.generate(
        model, chats, max_new_tokens=192, temperature=temperature, seed=seeds, drafter="none", batch_size=batch
    )
    return [
        Example(
            tokens=np.array([*prompt, *result.token_ids], np.int32),
            answer=np.arange(len(prompt) + len(result.token_ids)) >= len(prompt),
        )
        for prompt, result in zip(chats, results, strict=True)
    ]


def save(path: pathlib.Path, examples: list[Example]) -> None:
    """Writes examples of different lengths as flat arrays with their lengths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        tokens=np.concatenate([e.tokens for e in examples]),
        answer=np.concatenate([e.answer for e in examples]),
        lengths=np.array([len(e.tokens) for e in examples]),
    )


def load(path: pathlib.Path) -> list[Example]:
    """Reads what `save` wrote."""
    with np.load(path) as stored:
        cuts = np.cumsum(stored["lengths"])[:-1]
        parts = np.split(stored["tokens"], cuts), np.split(stored["answer"], cuts)
        return [Example(tokens, answer) for tokens, answer in zip(*parts, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Let the target answer the questions.")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="train.jsonl of openai/grade-school-math")
    parser.add_argument("--target", type=pathlib.Path, required=True, help="folder written by export_target.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="examples, .npz")
    parser.add_argument("--count", type=int, default=1500, help="questions to answer, the first of the training part")
    parser.add_argument("--skip", type=int, default=0, help="of those, leave out so many: another file has them")
    parser.add_argument("--unseen", action="store_true", help="answer the held-out questions instead")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0, help="of the first answer; others are drawn with those after it")
    parser.add_argument("--batch", type=int, default=64, help="prompts answered at once")
    parser.add_argument("--held-out", type=int, default=200, help="conversations kept for evaluation")
    args = parser.parse_args()

    training, unseen = conversations.split(conversations.read(args.data), args.held_out)
    asked = unseen if args.unseen else training[: args.count]
    questions = [chat[0]["content"] for chat in asked]
    model, start = eagle_jax.load(args.target), time.monotonic()
    # in parts of a few batches, sorted by length within each, so that what is done is on disk early
    examples: list[Example] = []
    for at in range(args.skip, len(questions), 8 * args.batch):
        part = questions[at : at + 8 * args.batch]
        seeds = [args.seed + at + i for i in range(len(part))]  # else every answer would be drawn with the same noise
        examples += answer(model, part, seeds, args.temperature, args.batch)
        save(args.out, examples)
        tokens = sum(int(e.answer.sum()) for e in examples)
        print(f"{time.monotonic() - start:5.0f} s  {len(examples)} answers, {tokens:,} tokens", flush=True)


if __name__ == "__main__":
    main()
