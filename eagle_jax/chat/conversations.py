"""Reads files of conversations in several formats.

A file is a JSON list or has one JSON object per line; all records have the format of the first readable one:

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
    """Messages, their file and line, and whether the last answer was truncated (`finish_reason` is "length")."""

    messages: tuple[Message, ...]
    place: str
    cut: bool = False


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A skipped record and the reason."""

    place: str
    reason: str


def read(path: str | pathlib.Path) -> Iterator[Conversation | Skipped]:
    """Yields the conversations of a file, and `Skipped` for each record that is not one.

    Leading answers without a question and a last question without an answer are removed.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file's format is unknown.
    """
    path = pathlib.Path(path)
    parse: Callable[[Mapping[str, Any]], list[Message]] | None = None
    for place, record in _records(path):
        if isinstance(record, Skipped):
            yield record
            continue
        parse = parse or _detect_format(record, place)
        try:
            yield Conversation(tuple(_check_turns(parse(record))), place, record.get("finish_reason") == "length")
        except (ValueError, KeyError, TypeError) as error:
            yield Skipped(place, _reason(error))


def _records(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields each place with its JSON object, or with the reason to skip it."""
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:  # a byte order mark
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
            raise ValueError(f"{path} starts as a JSON list but is not valid JSON ({error}); copy it again") from None
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


def _detect_format(record: Mapping[str, Any], place: str) -> Callable[[Mapping[str, Any]], list[Message]]:
    for key, parse in (("conversations", _parse_sharegpt), ("messages", _parse_openai), ("data", _parse_ultrachat)):
        if isinstance(record.get(key), list):
            return parse
    question = next((key for key in QUESTIONS if key in record), None)
    answer = next((key for key in ANSWERS if key in record), None)
    if question is not None and answer is not None:
        return lambda record: _parse_pair(record, question, answer)
    raise ValueError(
        f"{place} has the keys {', '.join(map(repr, record)) or 'none'}; expected conversations (ShareGPT), "
        "messages (OpenAI), or a pair such as instruction and response"
    )


def _parse_sharegpt(record: Mapping[str, Any]) -> list[Message]:
    return [{"role": _role(message["from"]), "content": message["value"]} for message in record["conversations"]]


def _parse_openai(record: Mapping[str, Any]) -> list[Message]:
    return [{"role": _role(message["role"]), "content": _text(message["content"])} for message in record["messages"]]


def _parse_ultrachat(record: Mapping[str, Any]) -> list[Message]:
    roles = itertools.cycle(("user", "assistant"))
    return [{"role": role, "content": message} for role, message in zip(roles, record["data"])]


def _parse_pair(record: Mapping[str, Any], question: str, answer: str) -> list[Message]:
    question_text = "\n\n".join(part for part in (record[question], record.get("input")) if part)
    return [{"role": "user", "content": question_text}, {"role": "assistant", "content": record[answer]}]


def _role(name: str) -> str:
    if name not in ROLES:
        raise ValueError(f"the role {name!r}")
    return ROLES[name]


def _text(content: Any) -> Any:
    """Joins the text of a message in parts, `[{"type": "text", "text": ".."}]`."""
    if not isinstance(content, list):
        return content
    if any(part["type"] != "text" for part in content):
        raise ValueError("a part that is not text")
    return "".join(part["text"] for part in content)


def _check_turns(messages: list[Message]) -> list[Message]:
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
        message["content"].encode()  # raises for lone surrogates
    return [*system, *conversation]


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "a lone surrogate"
    if isinstance(error, KeyError):
        return f"no key {error}"
    return "not in the form of the file's first record" if isinstance(error, TypeError) else str(error)
