"""Answers and their JSON lines: FastChat's format as extended by Spec-Bench, with further fields."""

import dataclasses
import json
import time
import uuid
from typing import Any

from eagle_jax import api

# Fields of `choices[0]` with one entry per turn, and the entries' types; `accept_lengths` joins all turns.
PER_TURN = {
    "turns": str,
    "decoding_steps": int,
    "new_tokens": int,
    "wall_time": float,
    "prefill_time": float,
    "decode_time": float,
    "token_ids": list,
    "prompt_ids": list,
    "prompt_cut": int,
    "retokenized": int,
    "spent": list,
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """One turn's answer and its cost.

    Attributes:
        text, token_ids: the generated text and tokens.
        prompt_ids: tokens of the prompt.
        prompt_cut: number of characters of the conversation that were left out to make it fit.
        accepted_lengths: tokens that each step committed, without prefill.
        retokenized: number of tokens of `text` when tokenized by itself, with special tokens in front.
        seconds: wall time of the request with prefill, without compilation.
        prefill_seconds, decode_seconds: time to the first token, and from the first to the last.
        spent: steps, tokens and seconds by tree size.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    prompt_cut: int
    accepted_lengths: tuple[int, ...]
    retokenized: int
    seconds: float
    prefill_seconds: float
    decode_seconds: float
    spent: tuple[api.BudgetUse, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps after prefill."""
        return len(self.accepted_lengths)


@dataclasses.dataclass(frozen=True)
class Conversation:
    """One method's answers to the turns of one question, as far as they fit into the context."""

    id: int | str
    category: str
    method: str
    answers: tuple[Answer, ...]


def to_record(conversation: Conversation) -> dict[str, Any]:
    """Returns a line of an answer file."""
    answers = conversation.answers
    choice = {
        "index": 0,
        "turns": [a.text for a in answers],
        "decoding_steps": [a.steps for a in answers],
        "new_tokens": [len(a.token_ids) for a in answers],
        "wall_time": [a.seconds for a in answers],
        "accept_lengths": [length for a in answers for length in a.accepted_lengths],
        "prefill_time": [a.prefill_seconds for a in answers],
        "decode_time": [a.decode_seconds for a in answers],
        "token_ids": [list(a.token_ids) for a in answers],
        "prompt_ids": [list(a.prompt_ids) for a in answers],
        "prompt_cut": [a.prompt_cut for a in answers],
        "retokenized": [a.retokenized for a in answers],
        "spent": [[dataclasses.astuple(use) for use in a.spent] for a in answers],
    }
    return {
        "question_id": conversation.id,
        "category": conversation.category,
        "answer_id": uuid.uuid4().hex,
        "model_id": conversation.method,
        "choices": [choice],
        "tstamp": time.time(),
    }


def from_line(line: str | bytes, place: str) -> Conversation:
    """Parses a line written from `to_record`. Raises ValueError, prefixed with `place`, if it is invalid."""
    try:
        fields = json.loads(line)
        choice, id_, category, method = (
            fields["choices"][0],
            *(fields[key] for key in ("question_id", "category", "model_id")),
        )
        columns = {"spent": [[]] * len(choice["turns"])} | choice  # earlier versions have no `spent`
        columns = {key: columns[key] for key in (*PER_TURN, "accept_lengths")}
    except KeyError as error:
        raise ValueError(f"{place}: {error} is missing; expected an answer that `eagle-jax eval` wrote") from None
    except (ValueError, TypeError, IndexError):
        raise ValueError(f"{place}: not an answer; expected a JSON object as `eagle-jax eval` writes it") from None
    if type(id_) not in (int, str) or not isinstance(category, str) or not isinstance(method, str):
        raise ValueError(f"{place}: question_id must be a whole number or a string, category and model_id strings")
    for key, kind in PER_TURN.items():
        column = columns[key]
        if not isinstance(column, list) or not all(
            isinstance(x, (int, float) if kind is float else kind) for x in column
        ):
            raise ValueError(f"{place}: {key} must be a list with one {kind.__name__} a turn")
    if len({len(columns[key]) for key in PER_TURN}) != 1 or not columns["turns"]:
        raise ValueError(f"{place}: {', '.join(PER_TURN)} must have one entry a turn each, and one turn at least")
    for key, per_turn in (("token_ids", True), ("prompt_ids", True), ("accept_lengths", False)):
        lists = columns[key] if per_turn else [columns[key]]
        if not all(isinstance(numbers, list) and all(type(number) is int for number in numbers) for numbers in lists):
            raise ValueError(f"{place}: {key} must hold {'lists' if per_turn else 'a list'} of whole numbers")
    if not all(_is_spent(entry) for turn in columns["spent"] for entry in turn):
        raise ValueError(f"{place}: spent must hold lists of nodes, steps, tokens and seconds")
    if sum(columns["decoding_steps"]) != len(columns["accept_lengths"]):
        raise ValueError(
            f"{place}: {len(columns['accept_lengths'])} accept_lengths for {sum(columns['decoding_steps'])} "
            "decoding_steps; expected as many"
        )
    return Conversation(id_, category, method, tuple(_answers(columns)))


def _is_spent(entry: Any) -> bool:
    """Returns whether it is `dataclasses.astuple` of a `BudgetUse`."""
    if not isinstance(entry, list) or len(entry) != 4 or type(entry[3]) not in (int, float):
        return False
    return all(type(count) is int for count in entry[:3])


def _answers(columns: dict[str, Any]) -> list[Answer]:
    answers, offset = [], 0
    for turn, steps in enumerate(columns["decoding_steps"]):
        answers.append(
            Answer(
                text=columns["turns"][turn],
                token_ids=tuple(columns["token_ids"][turn]),
                prompt_ids=tuple(columns["prompt_ids"][turn]),
                prompt_cut=columns["prompt_cut"][turn],
                accepted_lengths=tuple(columns["accept_lengths"][offset : offset + steps]),
                retokenized=columns["retokenized"][turn],
                seconds=float(columns["wall_time"][turn]),
                prefill_seconds=float(columns["prefill_time"][turn]),
                decode_seconds=float(columns["decode_time"][turn]),
                spent=tuple(api.BudgetUse(*entry) for entry in columns["spent"][turn]),
            )
        )
        offset += steps
    return answers
