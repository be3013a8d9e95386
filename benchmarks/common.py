"""What the scripts share: questions as prompts that fit the model, tables, and errors in one sentence."""

import argparse
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

from eagle_jax import Model
from eagle_jax.cli.console import TRACEBACK, sentence
from eagle_jax.evaluation import Prompter, read_questions


def parser(question: str, new_tokens: int, must_ask: bool = True) -> argparse.ArgumentParser:
    """Arguments that every script takes.

    Args:
        must_ask: whether there is nothing else to answer than questions.
    """
    arguments = argparse.ArgumentParser(description=question)
    arguments.add_argument(
        "--questions", type=pathlib.Path, required=must_ask, help="JSONL file in Spec-Bench's format"
    )
    arguments.add_argument("--limit", type=int, default=None, help="use the first N questions only")
    arguments.add_argument("--new-tokens", type=int, default=new_tokens, help="longest answer (default: %(default)s)")
    arguments.add_argument("--target", default=None, help="folder or hub name; default: the shipped pair")
    arguments.add_argument("--head", default=None, help="folder or hub name of the head")
    return arguments


def prompts(model: Model, path: pathlib.Path, limit: int | None, new_tokens: int) -> list[list[int]]:
    """First turns as chats, in token ids; a question too long for the context loses its beginning."""
    prompter = Prompter(model, chat=True, max_new_tokens=new_tokens, cut=True)
    asked = (prompter([{"role": "user", "content": question.turns[0]}]) for question in read_questions(path, limit))
    return [prompt.ids for prompt in asked if prompt is not None]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def report(done: int, total: int) -> None:
    """Progress on one line of stderr."""
    print(f"\r{done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def begin(main: Callable[[], None]) -> None:
    """Runs a script; wrong paths and values end it with one sentence, as they end the `eagle-jax` command."""
    try:
        main()
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get(TRACEBACK):
            raise
        raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {sentence(error)}") from None
