"""Conversations answered anew by the target itself: a head drafts best what it has seen the target say.

One line of JSON for each conversation, in the order of the file. Lines are written when a few batches of conversations
are complete, and are on disk before the next ones begin, so a restart takes up where the last one ended; and because
the same seed gives the same text in any batch, the file comes out the same however often it was interrupted.

Each line says under `generation` what its answers depend on, so that nothing else is mixed into them.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagle_jax.chat.conversations import Conversation, Skipped, read
from eagle_jax.chat.prompts import Unfit, encode
from eagle_jax.checks import check_same_settings, whole_number
from eagle_jax.jobs import Defaults
from eagle_jax.jobs.lines import contents_of
from eagle_jax.jsonl import JsonLines, Read, parsed
from eagle_jax.loading.model import Model
from eagle_jax.ops.dispatch import environment_settings
from eagle_jax.scheduling.generate import generate

GROUPS = 4  # batches between two writes, by default: rows whose answers are short take up those of the next batches
START = b'{"id": 0, "messages": [{"role": "'  # of every line, for any number


@dataclasses.dataclass(frozen=True)
class Regenerated:
    """What became of the conversations.

    Attributes:
        answered: written now.
        before: written by earlier starts.
        cut: of those written now, the ones whose last answer reached the longest length.
        skipped: records that are no conversation, leave no room for an answer, are refused by the chat template, or got
            an empty answer.
    """

    answered: int
    before: int
    cut: int
    skipped: int


@dataclasses.dataclass
class _Conversation:
    """A conversation under way: its number in the file, its messages so far, and the questions that are left."""

    id: int
    messages: list[dict[str, str]]
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
    write_every: int | None = None,
    limit: int | None = None,
    made_with: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Regenerated:
    """Has every conversation of `data` again, with the model's own answers, and appends it to `out`.

    Args:
        data: a file that `eagle-jax train` reads.
        out: JSON lines, `{"id", "messages", "finish_reason", "generation"}`; what is there already is kept.
            `generation` states the options, what `data` holds, and `made_with`; with others than a line states the file
            is not gone on with.
        seed: the noise of each answer follows from it, the conversation's number and the turn.
        batch_size: answers decoded together.
        write_every: conversations between two writes; four batches of them by default. A GPU, which answers large
            batches within seconds, wants more: it idles at the end of each.
        limit: maximum number of conversations to answer.
        made_with: what answers depend on besides, by name: the target, its dtype. Values are JSON's.
        progress: called with (conversations done, conversations in all).

    Raises:
        FileNotFoundError: there is no `data`.
        ValueError: `data` is of no known form or holds no conversation, an option is out of its range, `out` is `data`,
            something else, made with other settings or written by another process, or the model has no chat template.
            Nothing is changed then.
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
    Defaults(**sampling)  # refuses what batch jobs refuse
    whole_number("batch_size", batch_size, 1)
    every = GROUPS * batch_size if write_every is None else whole_number("write_every", write_every, 1)
    if limit is not None:
        whole_number("limit", limit, 1)
    path = Path(out)
    if path.exists() and path.samefile(data):
        raise ValueError(f"{out} is input and output; name another output")
    records = list(enumerate(read(data), start=1))
    conversations = [_talk(number, item) for number, item in records if isinstance(item, Conversation)][:limit]
    skipped = [item for _, item in records if isinstance(item, Skipped)]
    if not conversations:
        why = f" (at {skipped[0].place}: {skipped[0].reason})" if skipped else ""
        raise ValueError(f"there is no conversation in {data}{why}; give a file that `eagle-jax train` reads")
    generation = {**sampling, "data": contents_of([Path(data)]).digest[:16], "operations": environment_settings()}
    generation |= made_with or {}  # settings are stated where there are none too: what a line lacks is not compared
    path.parent.mkdir(parents=True, exist_ok=True)
    with JsonLines(path, _reader(path, generation)) as file:
        before = set(file.entries)
        waiting = [conversation for conversation in conversations if conversation.id not in before]
        answered = cut = 0
        for first in range(0, len(waiting), every):
            group = waiting[first : first + every]
            _answer(model, group, sampling, batch_size)
            complete = [
                conversation
                for conversation in group
                if any(message["role"] == "assistant" for message in conversation.messages)
            ]
            file.append(*(_record(conversation, generation) for conversation in complete))
            answered += len(complete)
            cut += sum(conversation.finish == "length" for conversation in complete)
            if progress is not None:
                progress(len(conversations) - len(waiting) + first + len(group), len(conversations))
    return Regenerated(answered, len(conversations) - len(waiting), cut, len(skipped) + len(waiting) - answered)


def _talk(number: int, conversation: Conversation) -> _Conversation:
    system = [dict(message) for message in conversation.messages if message["role"] == "system"]
    return _Conversation(
        number, system, [dict(message) for message in conversation.messages if message["role"] == "user"]
    )


def _answer(model: Model, conversations: Sequence[_Conversation], sampling: dict[str, Any], batch_size: int) -> None:
    """Answers turn by turn, all conversations that have the turn at once."""
    for turn in range(max(len(conversation.questions) for conversation in conversations)):
        prompts = [
            (conversation, _prompt(model, conversation, turn))
            for conversation in conversations
            if len(conversation.questions) > turn
        ]
        going = [(conversation, ids) for conversation, ids in prompts if ids is not None]
        if not going:
            return
        seeds = [_seed(sampling["seed"], conversation.id, turn) for conversation, _ in going]
        results = generate(model, [ids for _, ids in going], **(sampling | {"seed": seeds}), batch_size=batch_size)
        for (conversation, _), result in zip(going, results, strict=True):
            conversation.finish = result.finish_reason if result.text.strip() else "empty"
            if result.text.strip():
                conversation.messages += [conversation.questions[turn], {"role": "assistant", "content": result.text}]


def _prompt(model: Model, conversation: _Conversation, turn: int) -> list[int] | None:
    """Returns token ids up to the next question; None if the last answer was cut off, or no room is left for one."""
    if turn and conversation.finish != "stop":
        return None
    messages = [*conversation.messages, conversation.questions[turn]]
    try:
        ids = encode(model.tokenizer, messages, model.target.config.vocab_size, f"conversation {conversation.id}")
    except Unfit:
        ids = []
    if not 0 < len(ids) < model.context:
        conversation.questions = conversation.questions[:turn]
        return None
    return ids


def _seed(seed: int, number: int, turn: int) -> int:
    return int(np.random.SeedSequence([seed, number, turn]).generate_state(1)[0])


def _record(conversation: _Conversation, generation: dict[str, Any]) -> dict[str, Any]:
    finish = "stop" if conversation.finish == "empty" else conversation.finish
    return {"id": conversation.id, "messages": conversation.messages, "finish_reason": finish, "generation": generation}


def _reader(path: Path, generation: Mapping[str, Any]) -> Read[int]:
    """Reads the number of a conversation that was written with these settings; refuses lines of anything else."""

    def read(line: bytes, number: int) -> int | None:
        entry = _entry(line)
        if entry is None:
            if line.endswith(b"\n") or (number == 1 and not _is_begun(line)):
                raise ValueError(f"{path} holds something else already; name another file")
            return None
        number, before = entry
        check_same_settings(path, before, generation, "name another file", before)  # earlier versions state fewer
        return number

    return read


def _entry(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """Returns the number and settings of a line that is ours, with or without its end; None of any other."""
    record = parsed(line)
    settings = record.get("generation") if isinstance(record, dict) else None
    if not isinstance(settings, dict) or "seed" not in settings or type(record.get("id")) is not int:
        return None
    return record["id"], settings


def _is_begun(line: bytes) -> bool:
    """Returns whether it is the beginning of a line of ours; records of others that look the same are whole."""
    return START.startswith(re.sub(rb"\d+", b"0", line, count=1)[: len(START)]) and parsed(line) is None
