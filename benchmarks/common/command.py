"""Arguments that scripts share, questions as prompts that fit the model, and errors as one sentence."""

import argparse
import os
import pathlib
import sys
from collections.abc import Callable

import eagle_jax
from eagle_jax.cli.console import TRACEBACK, sentence
from eagle_jax.evaluation import Prompter, read_questions
from eagle_jax.evaluation.metrics import task

PAIR = pathlib.Path(eagle_jax.__file__).parent / "pair"  # the shipped one


def parser(doc: str, *, new_tokens: int | None = None, questions: bool = True) -> argparse.ArgumentParser:
    """With the module's docstring as help.

    Args:
        new_tokens: default of `--new-tokens`; None is a script without a pair and questions.
        questions: whether `--questions` has to be given.
    """
    arguments = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if new_tokens is not None:
        arguments.add_argument(
            "--questions", type=pathlib.Path, required=questions, help="JSONL file in Spec-Bench's format"
        )
        arguments.add_argument("--limit", type=int, help="use the first N questions only")
        arguments.add_argument("--every", type=int, default=1, help="ask every Nth question only")
        arguments.add_argument("--new-tokens", type=int, default=new_tokens, help="longest answer (%(default)s)")
        arguments.add_argument("--target", default="toy", help="folder, name or hub name (%(default)s)")
        arguments.add_argument("--head", help="folder or hub name of the head")
    return arguments


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, such as a tree's."""
    return tuple(int(part) for part in text.split(","))


def tree(text: str) -> tuple[int, ...] | str:
    """A tree's numbers, or "auto"."""
    return text if text == "auto" else numbers(text)


def prompts(
    model: eagle_jax.Model, path: pathlib.Path, limit: int | None, new_tokens: int, every: int = 1
) -> list[list[int]]:
    """First turns in token ids, as chats where there is a template; one that is too long loses its beginning."""
    return [prompt for _, prompt in prompts_of_tasks(model, path, limit, new_tokens, every)]


def prompts_of_tasks(
    model: eagle_jax.Model, path: pathlib.Path, limit: int | None, new_tokens: int, every: int = 1
) -> list[tuple[str, list[int]]]:
    """What `prompts` gives, each behind the task that Spec-Bench counts its question to."""
    prompter = Prompter(model, chat=bool(model.tokenizer.chat_template), max_new_tokens=new_tokens, cut=True)
    asked = (
        (task(question.category), prompter([{"role": "user", "content": question.turns[0]}]))
        for question in read_questions(path, limit)[::every]
    )
    return [(name, prompt.ids) for name, prompt in asked if prompt is not None]


def begin(main: Callable[[], int | None]) -> None:
    """Runs a script; wrong paths and values end it with one sentence, as they end the `eagle-jax` command."""
    try:
        raise SystemExit(main())
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if os.environ.get(TRACEBACK):
            raise
        raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {sentence(error)}") from None
