"""Regenerates the answers of conversations with the target: a head drafts best when it was trained on them.

The output has one JSON line per conversation, in the order of the input. Lines are written and synced after every few
batches, so that a restart continues from there; since a seed gives the same text in any batch, the output does not
depend on interruptions. Each line states in `generation` the settings of its answers, so that no others are mixed in.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagle_jax.chat.conversations import Conversation, Skipped, read
from eagle_jax.chat.prompts import ChatTemplateError, encode
from eagle_jax.checks import check_same_settings, whole_number
from eagle_jax.jobs import Defaults
from eagle_jax.jobs.lines import read_contents
from eagle_jax.jsonl import JsonLines, Read, parsed
from eagle_jax.loading.model import Model
from eagle_jax.ops.dispatch import environment_settings
from eagle_jax.scheduling.generate import generate

BATCHES_PER_WRITE = 4  # by default: rows with short answers are refilled from the next batches
LINE_START = b'{"id": 0, "messages": [{"role": "'  # of every line, up to the number


@dataclasses.dataclass(frozen=True)
class Regenerated:
    """Numbers of conversations.

    Attributes:
        answered: written in this run.
        before: written by earlier runs.
        cut: written in this run with a last answer of maximum length.
        skipped: not a conversation, without room for an answer, rejected by the chat template, or with an empty answer.
    """

    answered: int
    before: int
    cut: int
    skipped: int


@dataclasses.dataclass
class _RunningConversation:
    """A conversation that is being regenerated: its number in the file, messages so far, and remaining questions."""

    id: int
    messages: list[dict[str, str]]
    questions: list[dict[str, str]]
    finish_reason: str = "stop"


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
    write_every: int | None = None,
    limit: int | None = None,
    made_with: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Regenerated:
    """Regenerates the answers of every conversation in `data`, and appends the conversations to `out`.

    Args:
        data: a file that `eagle-jax train` reads.
        out: JSON lines, `{"id", "messages", "finish_reason", "generation"}`; existing lines are kept. `generation` has
            the options, a digest of `data`, and `made_with`; a file with other settings is not continued.
        seed: the noise of an answer is derived from the seed, the conversation's number and the turn.
        batch_size: answers decoded together.
        write_every: conversations between two writes; four batches by default. GPUs, which answer large batches within
            seconds, profit from more, since they idle at the end of each group.
        limit: maximum number of conversations to answer.
        made_with: JSON values by name of what else the answers depend on, such as the target and its dtype.
        progress: called with (conversations done, conversations in all).

    Raises:
        FileNotFoundError: `data` does not exist.
        ValueError: `data` has no known format or no conversation, an option is out of range, `out` is `data`, has other
            content or settings or is written by another process, or the model has no chat template. Nothing is changed
            then.
        OSError: `out` cannot be written.
    """
    if model.tokenizer is None or not model.tokenizer.chat_template:
        raise ValueError(
            "the model's tokenizer has no chat template, and conversations need one; put it into the model's folder as "
            "chat_template.jinja"
        )
    sampling: dict[str, Any] = dict(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    Defaults(**sampling)  # validates the options
    whole_number("batch_size", batch_size, 1)
    group_size = BATCHES_PER_WRITE * batch_size if write_every is None else whole_number("write_every", write_every, 1)
    if limit is not None:
        whole_number("limit", limit, 1)
    path = Path(out)
    if path.exists() and path.samefile(data):
        raise ValueError(f"{out} is both input and output; name another output")
    numbered = list(enumerate(read(data), start=1))
    conversations = [_start(number, record) for number, record in numbered if isinstance(record, Conversation)][:limit]
    skipped = [record for _, record in numbered if isinstance(record, Skipped)]
    if not conversations:
        example = f" (at {skipped[0].place}: {skipped[0].reason})" if skipped else ""
        raise ValueError(f"there is no conversation in {data}{example}; give a file that `eagle-jax train` reads")
    generation = {**sampling, "data": read_contents([Path(data)]).digest[:16], "operations": environment_settings()}
    generation |= made_with or {}  # empty settings are stated too, since settings that a line lacks are not compared
    path.parent.mkdir(parents=True, exist_ok=True)
    with JsonLines(path, _reader(path, generation)) as file:
        before = set(file.entries)
        remaining = [conversation for conversation in conversations if conversation.id not in before]
        answered = cut = 0
        for first in range(0, len(remaining), group_size):
            group = remaining[first : first + group_size]
            _answer(model, group, sampling, batch_size)
            complete = [
                conversation
                for conversation in group
                if any(message["role"] == "assistant" for message in conversation.messages)
            ]
            file.append(*(_record(conversation, generation) for conversation in complete))
            answered += len(complete)
            cut += sum(conversation.finish_reason == "length" for conversation in complete)
            if progress is not None:
                progress(len(conversations) - len(remaining) + first + len(group), len(conversations))
    return Regenerated(answered, len(conversations) - len(remaining), cut, len(skipped) + len(remaining) - answered)


def _start(number: int, conversation: Conversation) -> _RunningConversation:
    system = [dict(message) for message in conversation.messages if message["role"] == "system"]
    return _RunningConversation(
        number, system, [dict(message) for message in conversation.messages if message["role"] == "user"]
    )


def _answer(
    model: Model, conversations: Sequence[_RunningConversation], sampling: dict[str, Any], batch_size: int
) -> None:
    """Answers turn by turn, each turn of all conversations in one call."""
    for turn in range(max(len(conversation.questions) for conversation in conversations)):
        prompts = [
            (conversation, _prompt(model, conversation, turn))
            for conversation in conversations
            if len(conversation.questions) > turn
        ]
        active = [(conversation, ids) for conversation, ids in prompts if ids is not None]
        if not active:
            return
        seeds = [_seed(sampling["seed"], conversation.id, turn) for conversation, _ in active]
        results = generate(model, [ids for _, ids in active], **(sampling | {"seed": seeds}), batch_size=batch_size)
        for (conversation, _), result in zip(active, results, strict=True):
            conversation.finish_reason = result.finish_reason if result.text.strip() else "empty"
            if result.text.strip():
                conversation.messages += [conversation.questions[turn], {"role": "assistant", "content": result.text}]


def _prompt(model: Model, conversation: _RunningConversation, turn: int) -> list[int] | None:
    """Returns the prompt of the next turn; None if the last answer was truncated or there is no room for another."""
    if turn and conversation.finish_reason != "stop":
        return None
    messages = [*conversation.messages, conversation.questions[turn]]
    try:
        ids = encode(model.tokenizer, messages, model.target.config.vocab_size, f"conversation {conversation.id}")
    except ChatTemplateError:
        ids = []
    if not 0 < len(ids) < model.context:
        conversation.questions = conversation.questions[:turn]
        return None
    return ids


def _seed(seed: int, number: int, turn: int) -> int:
    return int(np.random.SeedSequence([seed, number, turn]).generate_state(1)[0])


def _record(conversation: _RunningConversation, generation: dict[str, Any]) -> dict[str, Any]:
    finish_reason = "stop" if conversation.finish_reason == "empty" else conversation.finish_reason
    return {
        "id": conversation.id,
        "messages": conversation.messages,
        "finish_reason": finish_reason,
        "generation": generation,
    }


def _reader(path: Path, generation: Mapping[str, Any]) -> Read[int]:
    """Returns a reader of conversation numbers that rejects lines with other settings or other content."""

    def read(line: bytes, number: int) -> int | None:
        entry = _entry(line)
        if entry is None:
            if line.endswith(b"\n") or (number == 1 and not _is_cut_line(line)):
                raise ValueError(f"{path} has other content; name another file")
            return None
        number, before = entry
        check_same_settings(path, before, generation, "name another file", before)  # earlier versions wrote fewer
        return number

    return read


def _entry(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """Returns the number and settings of a line that `regenerate` wrote, even without its newline; else None."""
    record = parsed(line)
    settings = record.get("generation") if isinstance(record, dict) else None
    if not isinstance(settings, dict) or "seed" not in settings or type(record.get("id")) is not int:
        return None
    return record["id"], settings


def _is_cut_line(line: bytes) -> bool:
    """Returns whether it is a truncated line that `regenerate` wrote; similar records of others are complete JSON."""
    return LINE_START.startswith(re.sub(rb"\d+", b"0", line, count=1)[: len(LINE_START)]) and parsed(line) is None
