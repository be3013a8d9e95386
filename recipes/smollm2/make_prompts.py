"""Questions for SmolLM2 to answer, of the kinds that Spec-Bench asks, from public files of conversations and texts.

    python recipes/smollm2/make_prompts.py --chat FOLDER --target FOLDER --out FOLDER

README.md names the files that the folder holds and where they come from. The answers in the output are question marks:
the target writes them (`eagle-jax regenerate`). The order is shuffled by a fixed seed, so any first part of a file has
all kinds. Of two questions one goes into each output: greedy.jsonl and sampled.jsonl.
"""

import argparse
import json
import pathlib
import random
import re
from collections.abc import Iterator
from typing import Any

from eagle_jax.api import tokenizer_of

FOLLOW_UPS = (
    "Rewrite your previous response in fewer words.",
    "Explain it again like I'm five.",
    "Can you give an example?",
    "Why is that? Explain step by step.",
    "Now write the opposite view.",
    "List the main points of your answer.",
    "Rewrite your answer as a short poem.",
    "What assumptions have you made in your response?",
    "Rewrite it in a formal tone.",
    "What would change if there were twice as many?",
)
AT_MOST = {"maths": 4500, "roleplay": 1500, "code": 2000, "chat": 300}
Turns = list[str]


def read(path: pathlib.Path) -> list[dict]:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]


def paragraphs(path: pathlib.Path) -> list[dict]:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]]


def instructions(records: list[dict], rng: random.Random, follow_up: float) -> Iterator[Turns]:
    """MT-bench's kinds: one question, some with a second turn."""
    for record in records:
        context = record.get("input") or ""
        context = "" if context == "<noinput>" else context
        turns = ["\n\n".join(part for part in (record["instruction"], context) if part)]
        yield turns + [rng.choice(FOLLOW_UPS)] if rng.random() < follow_up else turns


def translations(german: list[dict]) -> Iterator[Turns]:
    for paragraph in german:
        for sentence in re.split(r"(?<=[.!?]) (?=[A-ZÄÖÜ])", paragraph["context"]):
            if 20 <= len(sentence) <= 400:
                yield [f"Translate German to English: {sentence}"]
        for question in paragraph["qas"]:
            yield [f"Translate German to English: {question['question']}"]


def summaries(english: list[dict], texts: list[str]) -> Iterator[Turns]:
    """Of paragraphs one by one, of two to five that follow each other, and of other texts."""
    contexts = [paragraph["context"] for paragraph in english]
    for size in range(1, 6):
        for first in range(len(contexts) - size + 1):
            yield [f"Summarize: {' '.join(contexts[first : first + size])}"]
    for text in texts:
        yield [f"Summarize: {text}"]


def questions(english: list[dict]) -> Iterator[Turns]:
    for paragraph in english:
        for question in paragraph["qas"]:
            yield [question["question"]]


def reading(english: list[dict], rng: random.Random) -> Iterator[Turns]:
    """Passages with the question after them; the other passages are of the same place in the file."""
    for number, paragraph in enumerate(english):
        others = (number - 2, number - 1, number + 1, number + 2)
        near = [english[other]["context"] for other in others if 0 <= other < len(english)]
        for question in paragraph["qas"]:
            passages = [paragraph["context"], *rng.sample(near, rng.randint(0, len(near)))]
            rng.shuffle(passages)
            yield ["\n".join([*passages, question["question"]])]


def conversations(records: list[dict]) -> Iterator[Turns]:
    for record in records:
        turns = [message["value"] for message in record["conversations"] if message["from"] in ("human", "user")]
        if turns:
            yield turns[:2]


def kinds(chat: pathlib.Path, rng: random.Random) -> dict[str, list[Turns]]:
    english, german = paragraphs(chat / "xquad.en.json"), paragraphs(chat / "xquad.de.json")
    general, roleplay = read(chat / "alpaca_libre.jsonl"), read(chat / "roleplay_instruct.json")
    code = read(chat / "codegen_instruct.json")
    long = [record["response"] for record in roleplay if 600 <= len(record["response"]) <= 4000]
    return {
        "maths": [[record["question"]] for record in read(chat / "gsm8k_train.jsonl")],
        "general": list(instructions(general, rng, 0.15)),
        "roleplay": list(instructions(roleplay, rng, 0.15)),
        "code": list(instructions(code, rng, 0.1)),
        "chat": list(conversations(read(chat / "sharegpt_sample.json"))),
        "translation": list(translations(german)),
        "summary": list(summaries(english, long)),
        "question": list(questions(english)),
        "reading": list(reading(english, rng)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat", type=pathlib.Path, required=True, help="folder with the source files")
    parser.add_argument("--target", required=True, help="folder of the target, whose tokenizer counts tokens")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the two files")
    parser.add_argument("--turns", type=int, default=1, help="questions in a conversation, at most (%(default)s)")
    parser.add_argument("--longest", type=int, default=900, help="tokens in a first prompt, at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tokenizer = tokenizer_of(args.target)
    chosen = [
        (name, turns[: args.turns])
        for name, turns in shuffled(args.chat, random.Random(args.seed))
        if prompt_tokens(tokenizer, turns[0]) <= args.longest
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    for first, file in enumerate(("greedy.jsonl", "sampled.jsonl")):
        lines = [line(*conversation) for conversation in chosen[first::2]]
        (args.out / file).write_text("".join(lines), encoding="utf-8")
        print(f"{len(lines)} conversations: {args.out / file}")


def shuffled(chat: pathlib.Path, rng: random.Random) -> list[tuple[str, Turns]]:
    """All conversations with their kinds; every kind is spread evenly over the list."""
    ordered = []
    for name, prompts in kinds(chat, rng).items():
        rng.shuffle(prompts)
        prompts = prompts[: AT_MOST.get(name)]
        ordered += [((number + rng.random()) / len(prompts), name, turns) for number, turns in enumerate(prompts)]
    return [(name, turns) for _, name, turns in sorted(ordered)]


def prompt_tokens(tokenizer: Any, question: str) -> int:
    message = {"role": "user", "content": question}
    return len(tokenizer.apply_chat_template([message], add_generation_prompt=True)["input_ids"])


def line(kind: str, turns: Turns) -> str:
    pairs = [(("user", turn), ("assistant", "?")) for turn in turns]
    messages = [{"role": role, "content": text} for pair in pairs for role, text in pair]
    return json.dumps({"messages": messages, "kind": kind}, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
