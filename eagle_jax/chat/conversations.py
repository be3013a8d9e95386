"""Conversation files as people have them, read into one form: chat messages, each with where it came from.

A file is a JSON list or one JSON object a line, and every record of it has the form of the first that can be read:

    conversations   [{"from": "human", "value": ".."}, {"from": "gpt", "value": ".."}]             ShareGPT
    messages        [{"role": "user", "content": ".."}, {"role": "assistant", "content": ".."}]    OpenAI
    data            ["question", "answer", "question", ..]                                         UltraChat
    instruction     and response or output, with or without input; prompt, question or query work as well
"""

import codecs
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Message = dict[str, str]

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
    "system": "system",
}
QUESTIONS, ANSWERS = ("instruction", "prompt", "question", "query"), ("response", "output", "answer", "completion")


@dataclasses.dataclass(frozen=True)
class Conversation:
    """The messages, their file and line, and whether the last answer was cut (`finish_reason` is length)."""

    messages: tuple[Message, ...]
    place: str
    cut: bool = False


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A record that is left out, and why."""

    place: str
    reason: str


def read(path: str | pathlib.Path) -> Iterator[Conversation | Skipped]:
    """Yields the conversations of a file; a record that is no conversation comes as `Skipped` in its place.

    Leading answers without a question and a last question without an answer are cut off.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is of no form that is known.
    """
    path = pathlib.Path(path)
    form: Callable[[Mapping[str, Any]], list[Message]] | None = None
    for place, record in _records(path):
        if isinstance(record, Skipped):
            yield record
            continue
        form = form or _form(record, place)
        try:
            yield Conversation(tuple(_in_turns(form(record))), place, record.get("finish_reason") == "length")
        except (ValueError, KeyError, TypeError) as error:
            yield Skipped(place, _reason(error))


def _records(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields each JSON object with its place, or what is wrong there."""
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:  # the mark that some editors begin a file with
            file.seek(0)
        first = next((byte for byte in iter(lambda: file.read(1), b"") if not byte.isspace()), b"")
        file.seek(0)
        if first != b"[":
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _parse(line, f"{path}:{number}")
            return
        try:
            records = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} starts as a JSON list but is not one ({error}); copy or make it again") from None
    for number, record in enumerate(records, start=1):
        place = f"{path}: record {number}"
        yield place, record if isinstance(record, dict) else Skipped(place, "not a JSON object")


def _parse(line: bytes, place: str) -> Any:
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        return Skipped(place, f"not UTF-8 text ({error.reason} at byte {error.start})")
    except (ValueError, RecursionError):
        return Skipped(place, "not JSON")
    return record if isinstance(record, dict) else Skipped(place, "not a JSON object")


def _form(record: Mapping[str, Any], place: str) -> Callable[[Mapping[str, Any]], list[Message]]:
    for key, form in (("conversations", _sharegpt), ("messages", _openai), ("data", _alternating)):
        if isinstance(record.get(key), list):
            return form
    question = next((key for key in QUESTIONS if key in record), None)
    answer = next((key for key in ANSWERS if key in record), None)
    if question is not None and answer is not None:
        return lambda record: _pair(record, question, answer)
    raise ValueError(
        f"{place} has the keys {', '.join(map(repr, record)) or 'none'}; expected conversations (ShareGPT), "
        "messages (OpenAI), or a pair such as instruction and response"
    )


def _sharegpt(record: Mapping[str, Any]) -> list[Message]:
    return [{"role": _role(message["from"]), "content": message["value"]} for message in record["conversations"]]


def _openai(record: Mapping[str, Any]) -> list[Message]:
    return [{"role": _role(message["role"]), "content": _text(message["content"])} for message in record["messages"]]


def _alternating(record: Mapping[str, Any]) -> list[Message]:
    roles = itertools.cycle(("user", "assistant"))
    return [{"role": role, "content": message} for role, message in zip(roles, record["data"])]


def _pair(record: Mapping[str, Any], question: str, answer: str) -> list[Message]:
    question_text = "\n\n".join(part for part in (record[question], record.get("input")) if part)
    return [{"role": "user", "content": question_text}, {"role": "assistant", "content": record[answer]}]


def _role(name: str) -> str:
    if name not in ROLES:
        raise ValueError(f"the role {name!r}")
    return ROLES[name]


def _text(content: Any) -> Any:
    """Returns the text of a message in parts, `[{"type": "text", "text": ".."}]`."""
    if not isinstance(content, list):
        return content
    if any(part["type"] != "text" for part in content):
        raise ValueError("a part that is not text")
    return "".join(part["text"] for part in content)


def _in_turns(messages: list[Message]) -> list[Message]:
    """Returns [system,] user, assistant, user, .., assistant, without unpaired messages at either end.

    Raises ValueError if the messages are in another order, are not text, or are empty.
    """
    system, conversation = messages[:1], messages[1:]
    if not system or system[0]["role"] != "system":
        system, conversation = [], messages
    conversation = list(itertools.dropwhile(lambda message: message["role"] == "assistant", conversation))
    if conversation and conversation[-1]["role"] == "user":
        conversation = conversation[:-1]
    if not conversation:
        raise ValueError("no question with an answer")
    for message, role in zip(conversation, itertools.cycle(("user", "assistant"))):
        if message["role"] != role:
            raise ValueError(f"{message['role']} where {role} should speak")
    for message in (*system, *conversation):
        if not isinstance(message["content"], str):
            raise ValueError("a message that is not text")
        if not message["content"].strip():
            raise ValueError("an empty message")
        message["content"].encode()  # half of a surrogate pair is no text either
    return [*system, *conversation]


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "half of a character (a lone surrogate)"
    if isinstance(error, KeyError):
        return f"no key {error}"
    return "not in the form of the file's first record" if isinstance(error, TypeError) else str(error)
