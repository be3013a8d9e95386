"""Question files in Spec-Bench's format: one JSON object per line, `{"question_id", "category", "turns": [...]}`."""

import dataclasses
import json
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Question:
    """The user's side of one conversation.

    Args:
        id: the file's `question_id`.
        category: category, by which results are grouped.
        turns: the user's messages, each of which the model answers.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]


def read_questions(path: str | pathlib.Path, limit: int | None = None) -> list[Question]:
    """Reads the first `limit` questions of a file (by default all); further keys are ignored.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is malformed (the message names it), an id is duplicate, or there is no question.
    """
    questions: dict[int | str, Question] = {}
    try:
        # not splitlines: JSON strings may contain other line separators
        lines = pathlib.Path(path).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(questions) == limit:
            break
        if not line.strip():
            continue
        question = _parse(line, place=f"{path}:{number}")
        if question.id in questions:
            raise ValueError(f"{path}:{number}: question_id {question.id!r} came before; ids must differ")
        questions[question.id] = question
    if not questions:
        raise ValueError(f"{path} has no questions; expected one JSON object per line")
    return list(questions.values())


def _parse(line: str, place: str) -> Question:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{place}: expected a JSON object with question_id, category and turns, got {_kind(fields)}")
    missing = [key for key in ("question_id", "category", "turns") if key not in fields]
    if missing:
        raise ValueError(f"{place}: {' and '.join(missing)} missing; a question has question_id, category and turns")
    id_, category, turns = fields["question_id"], fields["category"], fields["turns"]
    if isinstance(id_, bool) or not isinstance(id_, int | str):
        raise ValueError(f"{place}: question_id must be a whole number or a string, got {_kind(id_)}")
    if not isinstance(category, str):
        raise ValueError(f"{place}: category must be a string, got {_kind(category)}")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError(f"{place}: turns must be a list of one or more non-empty strings")
    return Question(id=id_, category=category, turns=tuple(turns))


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int) else "a number with a fraction")
