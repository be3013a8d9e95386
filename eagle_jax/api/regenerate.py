"""Conversations answered anew by the target itself: a head drafts best what it has seen the target say.

One line of JSON for each conversation, in the order of the file. A line is written when its conversation is complete,
and is on disk before the next ones begin, so a restart takes up where the last one ended; and because the same seed
gives the same text in any batch, the file comes out the same however often it was interrupted.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagle_jax.api.generate import generate
from eagle_jax.api.model import Model
from eagle_jax.api.prompts import encode
from eagle_jax.durable import append
from eagle_jax.training.formats import Conversation, Skipped, read

GROUPS = 4  # batches between two writes


@dataclasses.dataclass(frozen=True)
class Regenerated:
    """What became of the conversations.

    Attributes:
        answered: written now.
        before: written by earlier starts.
        cut: of those written now, the ones whose last answer reached the longest length.
        skipped: records that are no conversation, leave no room for an answer, or got an empty one.
    """

    answered: int
    before: int
    cut: int
    skipped: int


@dataclasses.dataclass
class _Talk:
    """A conversation under way: its number in the file, what was said, and what is still to be asked."""

    id: int
    said: list[dict[str, str]]
    questions: list[dict[str, str]]
    finish: str = "stop"


def regenerate(
    model: Model,
    data: str | Path,
    out: str | Path,
    *,
    max_new_tokens: int = 1024,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    batch_size: int = 32,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Regenerated:
    """Has every conversation of `data` again, with the model's own answers, and appends it to `out`.

    Args:
        data: a file that `eagle-jax train` reads.
        out: JSON lines, `{"id", "messages", "finish_reason", "generation"}`; what is there already is kept.
        seed: the noise of each answer follows from it, the conversation's number and the turn.
        batch_size: answers decoded together.
        limit: answer only the first so many conversations.
        progress: called with (conversations done, conversations in all).

    Raises:
        FileNotFoundError: there is no `data`.
        ValueError: `data` is of no known form, `out` was made with other settings, or the model has no chat template.
        OSError: `out` cannot be written.
    """
    if model.tokenizer is None or not model.tokenizer.chat_template:
        raise ValueError("the model's tokenizer has no chat template; conversations need one")
    sampling = dict(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    path = Path(out)
    before = _written(path, sampling)
    records = list(enumerate(read(data), start=1))
    talks = [_talk(number, item) for number, item in records if isinstance(item, Conversation)][:limit]
    waiting = [talk for talk in talks if talk.id not in before]
    answered = cut = 0
    for first in range(0, len(waiting), GROUPS * batch_size):
        group = waiting[first : first + GROUPS * batch_size]
        _answer(model, group, sampling, batch_size)
        complete = [talk for talk in group if any(said["role"] == "assistant" for said in talk.said)]
        append(path, "".join(_line(talk, sampling) for talk in complete).encode())
        answered += len(complete)
        cut += sum(talk.finish == "length" for talk in complete)
        if progress is not None:
            progress(len(talks) - len(waiting) + first + len(group), len(talks))
    malformed = sum(isinstance(item, Skipped) for _, item in records)
    return Regenerated(answered, len(talks) - len(waiting), cut, malformed + len(waiting) - answered)


def _talk(number: int, conversation: Conversation) -> _Talk:
    system = [dict(message) for message in conversation.messages if message["role"] == "system"]
    return _Talk(number, system, [dict(message) for message in conversation.messages if message["role"] == "user"])


def _answer(model: Model, talks: Sequence[_Talk], sampling: dict[str, Any], batch_size: int) -> None:
    """Turn by turn, all conversations that have the turn at once."""
    for turn in range(max(len(talk.questions) for talk in talks)):
        going = [talk for talk in talks if len(talk.questions) > turn and _goes_on(model, talk, turn)]
        if not going:
            return
        prompts = [[*talk.said, talk.questions[turn]] for talk in going]
        seeds = [_seed(sampling["seed"], talk.id, turn) for talk in going]
        results = generate(model, prompts, **(sampling | {"seed": seeds}), batch_size=batch_size)
        for talk, prompt, result in zip(going, prompts, results, strict=True):
            talk.finish = result.finish_reason if result.text.strip() else "empty"
            if result.text.strip():
                talk.said = [*prompt, {"role": "assistant", "content": result.text}]


def _goes_on(model: Model, talk: _Talk, turn: int) -> bool:
    """Whether the last answer ended by itself and the next question leaves room for one."""
    if turn and talk.finish != "stop":
        return False
    asked = [*talk.said, talk.questions[turn]]
    ids = encode(model.tokenizer, asked, model.target.config.vocab_size, f"conversation {talk.id}")
    if len(ids) < model.context:
        return True
    talk.questions = talk.questions[:turn]
    return False


def _seed(seed: int, number: int, turn: int) -> int:
    return int(np.random.SeedSequence([seed, number, turn]).generate_state(1)[0])


def _line(talk: _Talk, sampling: dict[str, Any]) -> str:
    finish = "stop" if talk.finish == "empty" else talk.finish
    record = {"id": talk.id, "messages": talk.said, "finish_reason": finish, "generation": sampling}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _written(path: Path, sampling: dict[str, Any]) -> set[int]:
    """Numbers of the conversations that are there; a last line that was not finished is taken away."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return set()
    whole = 0
    done: set[int] = set()
    for line in _lines(path):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            number, settings = record["id"], record["generation"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} holds something else already; name another file") from None
        if settings != sampling:
            there = ", ".join(f"{name}={value}" for name, value in settings.items() if value != sampling.get(name))
            raise ValueError(f"{path} was begun with {there}; give the same settings, or name another file")
        done.add(number)
        whole += len(line)
    os.truncate(path, whole)
    return done


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file
