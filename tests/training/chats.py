"""A run small enough for a test: conversations of a few words, their tokenizer, and its configuration."""

import json
import pathlib
import random

import yaml
from families import words
from toy import CONFIG

from eagle_jax.training.config import TrainConfig, read_config

TOKENIZER = words(CONFIG.vocab_size)


def write_chats(path: pathlib.Path, count: int, seed: int = 0) -> None:
    """Questions and answers of random words; an answer repeats one word, so there is something to learn."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            question = " ".join(f"w{draw.randrange(4, CONFIG.vocab_size)}" for _ in range(3))
            answer = " ".join([f"w{draw.randrange(4, 8)}"] * draw.randrange(4, 8))
            file.write(json.dumps({"instruction": question, "response": answer}) + "\n")


def config(folder: pathlib.Path, *assignments: str) -> TrainConfig:
    """The configuration in `folder`/train.yaml, which is written together with its conversations at first."""
    path = folder / "train.yaml"
    if not path.exists():
        write_chats(folder / "chats.jsonl", 40)
        settings = {
            "out": str(folder / "run"),
            "steps": 8,
            "batch": 2,
            "log_every": 2,
            "data": {"train": str(folder / "chats.jsonl"), "length": 16, "held_out_share": 0.2, "pack": False},
            "head": {"intermediate_size": 24},
            "objective": {"distribution_weight": 1.0},
            "optimizer": {"rate": 0.01, "warmup": 2},
            "checkpoint": {"every": 3, "keep": 2},
            "evaluation": {"depth": 2},
        }
        path.write_text(yaml.safe_dump(settings))
    return read_config(path, assignments)
