"""Parses the lines of a batch job: a prompt in one of three forms, and options."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_jax.checks import as_json
from eagle_jax.fields import Fields, anything, listed, mapping, text, whole_number
from eagle_jax.jobs.lines import Line, lines_of
from eagle_jax.protocols.base import ResponseFormat
from eagle_jax.protocols.calls import IGNORED, MAX_INT32, Call, chat_call, completion_call, take_chat
from eagle_jax.protocols.chat import Chat
from eagle_jax.protocols.completions import Completion
from eagle_jax.protocols.responses import Responses
from eagle_jax.protocols.responses_call import responses_call
from eagle_jax.protocols.structured import take_form
from eagle_jax.protocols.tools import take_tools
from eagle_jax.requests.options import Options, seeds_for
from eagle_jax.requests.processing import LogitsOptions, Processing, check_processing
from eagle_jax.structured.checks import FORMS

PROMPTS: Mapping[str, Any] = {"prompt": text, "messages": listed, "prompt_ids": listed}
LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")  # our name of the option, and OpenAI's two
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", *Processing.__annotations__)
# OpenAI's batch format: a line is an envelope around the body of a request.
ENVELOPE = ("custom_id", "method", "url", "body")
ENDPOINTS: Mapping[str, tuple[type[ResponseFormat], Callable[[dict[str, Any], bool], Call]]] = {
    "/v1/chat/completions": (Chat, chat_call),
    "/v1/completions": (Completion, completion_call),
    "/v1/responses": (Responses, responses_call),
}
MAX_ANSWERS = 1024  # per row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults(LogitsOptions):
    """Default options of rows, with the meanings of `generate`.

    Attributes:
        seed: the seed of a row without one is derived from it and the row's number.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self):
        seeds_for(self.seed, 1)
        values = check_processing(self.values)
        Options(logprobs=False, **{name: value for name, value in values.items() if name != "seed"})
        for name in Processing.__annotations__.keys() & values.keys():
            object.__setattr__(self, name, values[name])

    @property
    def values(self) -> dict[str, Any]:
        """All options by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row that is valid as far as can be checked without the model.

    Attributes:
        number: number of the row, from 0.
        id: id of the row, or its place.
        call: the request; options have `generate`'s names.
        response_format: format of the response to a row in OpenAI's format; None for other rows.
    """

    number: int
    id: str | int
    call: Call
    response_format: type[ResponseFormat] | None = None


@dataclasses.dataclass(frozen=True)
class RejectedRow:
    """A row that cannot be answered, and the error message; `is_openai` for a row in OpenAI's format."""

    number: int
    id: str | int
    error: str
    is_openai: bool = False


def read(line: Line, ignore_unknown: bool = False) -> Row | RejectedRow:
    """Parses the request in a line; `ignore_unknown` ignores unknown fields. A rejected row keeps its id."""
    id_: str | int = line.place
    is_openai = False
    try:
        fields = _object(line.content)
        is_openai = "body" in fields
        id_ = _id(fields, line.place)
        if not is_openai:
            return Row(line.number, id_, _plain_call(fields, ignore_unknown))
        response_format, call = _openai_call(fields, ignore_unknown)
        return Row(line.number, id_, call, response_format)
    except (ValueError, RecursionError) as error:
        return RejectedRow(line.number, id_, sentence(error), is_openai)


def check_unique_ids(files: Sequence[Path]) -> None:
    """Raises ValueError if two rows have the same id, since their answers could not be distinguished."""
    place_of: dict[str | int, str] = {}
    for line in lines_of(files):
        try:
            id_ = _id(_object(line.content), "")
        except ValueError:
            continue  # such a row gets its error in the output
        if id_ != "" and id_ in place_of:
            raise ValueError(f"{place_of[id_]} and {line.place} have the same id {as_json(id_)}; give each row its own")
        place_of[id_] = line.place


def sentence(error: Exception) -> str:
    """Returns an error's message on one line, with lone surrogates escaped."""
    return " ".join(str(error).split()).encode(errors="backslashreplace").decode()


def _object(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"not a JSON object but {as_json(fields)}; expected fields such as prompt or messages")
    return fields


def _id(fields: dict[str, Any], place: str) -> str | int:
    """Returns the row's own id, under either name, or its place."""
    id_ = fields.get("custom_id" if "body" in fields else "id")
    if id_ is None:
        return place
    if type(id_) is int or isinstance(id_, str) and _is_valid_unicode(id_):
        return id_
    raise ValueError(f"id {as_json(id_)}; expected text or a whole number")


def _openai_call(envelope: dict[str, Any], ignore_unknown: bool) -> tuple[type[ResponseFormat], Call]:
    """Parses the request in an OpenAI envelope, as the server does; returns the response format too."""
    unknown = [name for name in envelope if name not in ENVELOPE]
    if unknown and not ignore_unknown:
        raise ValueError(f"field {as_json(unknown[0])} next to body is not known; expected {', '.join(ENVELOPE)}")
    url, body = envelope.get("url"), envelope["body"]
    if url is not None and url not in ENDPOINTS:
        raise ValueError(f"url {as_json(url)}; expected one of {', '.join(ENDPOINTS)}")
    if not isinstance(body, dict):
        raise ValueError(f"body is {as_json(body)}; expected an object with messages or a prompt")
    endpoint = "completions" if "prompt" in body else "responses" if "input" in body else "chat/completions"
    response_format, parse = ENDPOINTS[url or f"/v1/{endpoint}"]
    try:
        call = parse(body, ignore_unknown)
    except ValueError as error:
        raise ValueError(response_format.with_request_field_names(str(error))) from None
    if call.stream:
        raise ValueError("stream=true is not supported in batch jobs; leave it out")
    if call.samples * len(call.prompts) > MAX_ANSWERS:
        raise ValueError(f"n={call.samples}; expected at most {MAX_ANSWERS} answers per row")
    return response_format, dataclasses.replace(call, reports_steps=False)  # every row has statistics anyway


def _plain_call(row: dict[str, Any], ignore_unknown: bool) -> Call:
    """Parses a row in our own format: messages, tools and structured output as in OpenAI's, options of `generate`."""
    fields = Fields(row, ignore_unknown=ignore_unknown)
    fields.ignore({"id": anything} | IGNORED)
    prompts = {name: value for name, check in PROMPTS.items() if (value := fields.take(name, check, None)) is not None}
    if len(prompts) != 1:
        raise ValueError(f"{' and '.join(prompts) or 'no prompt'} given; expected one of {', '.join(PROMPTS)}")
    [(kind, prompt)] = prompts.items()
    tools = None
    if kind == "messages":  # not parsed: templates may read more than OpenAI's fields
        prompt, tools = take_chat(fields, [mapping(f"messages[{i}]", message) for i, message in enumerate(prompt)])
    elif take_tools(fields) is not None:
        raise ValueError("tools with a prompt that is not a chat; give messages, or leave tools out")
    lengths = {
        name: length for name in LENGTHS if (length := fields.take(name, whole_number(1, MAX_INT32), None)) is not None
    }
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{' and '.join(lengths)} mean the same and differ; give one of them")
    form = take_form(fields)
    values = {name: fields.take(name, anything, None) for name in OPTIONS if name not in FORMS}
    options = {name: value for name, value in values.items() if value is not None} | form
    fields.end()
    return Call(
        model=None,
        prompts=[prompt],
        samples=1,
        options=options | {"max_new_tokens": length for length in lengths.values()},
        stream=False,
        include_usage=False,
        continuous_usage=False,
        reports_steps=False,
        ignored=(),
        tools=tools,
    )


def _is_valid_unicode(text: str) -> bool:
    """Returns whether a text has no lone surrogates, which JSON can escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
