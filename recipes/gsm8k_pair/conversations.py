"""GSM8K problems as single-turn conversations, split into a training and a held-out part."""

import json
import pathlib
import random
import re

Conversation = list[dict[str, str]]

CALCULATION = re.compile(r"<<[^>]*>>")
FINAL = re.compile(r"\n?####\s*(.+?)\s*$")


def read(path: str | pathlib.Path) -> list[Conversation]:
    """Reads `train.jsonl` of openai/grade-school-math.

    Calculator marks (`<<48/2=24>>`) are dropped, and the last line `#### 72` becomes `The answer is 72.`: text a person
    would write.
    """
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [conversation(**json.loads(line)) for line in lines if line.strip()]


def conversation(question: str, answer: str) -> Conversation:
    """One problem and its worked answer as two chat messages."""
    answer = CALCULATION.sub("", answer).strip()
    answer = FINAL.sub(r"\nThe answer is \1.", answer)
    return [{"role": "user", "content": question.strip()}, {"role": "assistant", "content": answer}]


def split(
    conversations: list[Conversation], held_out: int, seed: int = 0
) -> tuple[list[Conversation], list[Conversation]]:
    """Shuffles once and cuts: (training, held out). The same seed gives the same cut."""
    if not 0 < held_out < len(conversations):
        raise ValueError(
            f"held_out={held_out} must lie between 0 and the number of conversations, {len(conversations)}"
        )
    shuffled = list(conversations)
    random.Random(seed).shuffle(shuffled)
    return shuffled[held_out:], shuffled[:held_out]
