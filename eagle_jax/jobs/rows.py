"""What a line of a batch job asks for: a prompt in one of three forms, and options of its own."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagle_jax.jobs.lines import Line, lines_of
from eagle_jax.loading.model import Model
from eagle_jax.scheduling.options import Options, seeds_for, stop_strings
from eagle_jax.scheduling.processing import LogitsOptions, Processing, check_processing
from eagle_jax.scheduling.request import Request, requests_for, with_form
from eagle_jax.scheduling.structured import schema_of_response_format
from eagle_jax.text.prompts import Chat
from eagle_jax.text.tool_calls import tool_format_for
from eagle_jax.text.tools import Tools, call_options, read_tools

PROMPTS = {"prompt": str, "messages": list, "prompt_ids": list}
LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")  # ours, and OpenAI's two names for it
CALLING = ("tools", "tool_choice", "parallel_tool_calls")  # of rows with messages
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", *Processing.__annotations__)
# OpenAI's batch form: a line is an envelope around the body of a request.
ENVELOPE = ("custom_id", "method", "url", "body")
URLS = ("/v1/chat/completions", "/v1/completions")
PASSED_OVER = ("model", "user", "metadata", "store")
ONLY: Mapping[str, Any] = {"n": 1, "stream": False, "logprobs": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults(LogitsOptions):
    """Options of rows that do not state their own; `generate` says what they mean.

    Attributes:
        seed: the seed of a row that has none follows from it and from the row's number.
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
        """All of them by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row that can be answered, as far as can be told without the model.

    Attributes:
        number: which of all rows it is, from 0.
        id: the one it came with, or its place.
        prompt: text, chat messages or token ids.
        options: those it states, under `generate`'s names.
        tools: functions that its answer may call.
        form: "chat" or "completion" of a row in OpenAI's form, which gets its answer in that form; else None.
        model: what a row in that form calls the model.
    """

    number: int
    id: str | int
    prompt: Any
    options: dict[str, Any]
    form: str | None = None
    model: str | None = None
    tools: Tools | None = None


@dataclasses.dataclass(frozen=True)
class Refused:
    """A row that cannot be answered, and why, in one sentence."""

    number: int
    id: str | int
    error: str
    form: str | None = None


def read(line: Line) -> Row | Refused:
    """What a line asks for; a line that is malformed keeps its id if it has one."""
    id_: str | int = line.place
    form = None
    try:
        fields = _object(line.content)
        form = _form(fields)
        id_ = _id(fields, line.place)
        model = fields["body"].get("model") if form and isinstance(fields["body"], dict) else None
        prompt, options, tools = _asked(fields)
        return Row(line.number, id_, prompt, options, form, model if isinstance(model, str) else None, tools)
    except ValueError as error:
        return Refused(line.number, id_, _sentence(error), form)


def refuse_twins(files: Sequence[Path]) -> None:
    """Refuses files in which two rows state one id: nobody could tell their answers apart.

    Raises:
        ValueError: there are two.
    """
    places: dict[str | int, str] = {}
    for line in lines_of(files):
        try:
            id_ = _id(_object(line.content), "")
        except ValueError:
            continue  # such a row gets its error in the output
        if id_ != "" and id_ in places:
            raise ValueError(f"{places[id_]} and {line.place} have the same id {_short(id_)}; give each row its own")
        places[id_] = line.place


def to_request(model: Model, row: Row, defaults: Defaults) -> Request | Refused:
    """The request that a row makes of a model."""
    seed = row.options.get("seed", _seed(defaults.seed, row.number))
    try:
        form = {} if row.tools is None else call_options(row.tools, tool_format_for(model.tokenizer))
        values = defaults.values | check_processing(row.options | form)
        del values["seed"]
        values["stop"] = stop_strings(values["stop"] or None, model.tokenizer)
        [request] = requests_for(model, [row.prompt], [Options(logprobs=False, **values)], seeds_for(seed, 1))
        request = with_form(model, request)
    except (ValueError, TypeError, OverflowError) as error:
        return Refused(row.number, row.id, _sentence(error), row.form)
    return dataclasses.replace(request, index=row.number)


def _sentence(error: Exception) -> str:
    """What an error says, as text that can be written: it may quote halves of characters."""
    return " ".join(str(error).split()).encode(errors="backslashreplace").decode()


def _object(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"not a JSON object but {_short(fields)}; expected fields such as prompt or messages")
    return fields


def _id(fields: dict[str, Any], place: str) -> str | int:
    """The row's own id, under either name, or its place. Ids are text that can be written, or whole numbers."""
    stated = fields.get("custom_id" if "body" in fields else "id")
    if stated is None:
        return place
    if type(stated) is int or isinstance(stated, str) and _is_writable(stated):
        return stated
    raise ValueError(f"id {_short(stated)}; expected text or a whole number")


def _form(fields: dict[str, Any]) -> str | None:
    """Which of OpenAI's two forms a row has, if one."""
    if "body" not in fields:
        return None
    body = fields["body"] if isinstance(fields["body"], dict) else {}
    return "completion" if fields.get("url") == URLS[1] or "prompt" in body else "chat"


def _asked(fields: dict[str, Any]) -> tuple[Any, dict[str, Any], Tools | None]:
    """The prompt, the options and the functions that a row states; null is as good as leaving a field out."""
    fields = _body(fields) if "body" in fields else {name: value for name, value in fields.items() if name != "id"}
    present = {name: value for name, value in fields.items() if value is not None}
    if (schema := schema_of_response_format(present.pop("response_format", {"type": "text"}))) is not None:
        present |= {"json_schema": schema}
    unknown = [name for name in present if name not in (*PROMPTS, *LENGTHS, *OPTIONS, *CALLING)]
    if unknown:
        field_names = ", ".join(("id", *PROMPTS, "max_new_tokens", *OPTIONS, *CALLING))
        raise ValueError(f"field {_short(unknown[0])} is not known; expected {field_names}")
    lengths = [name for name in LENGTHS if name in present]
    if len(lengths) > 1:
        raise ValueError(f"{' and '.join(lengths)} mean the same; give one of them")
    options = {name: present[name] for name in OPTIONS if name in present}
    prompt, tools = _prompt(present), _tools(present)
    prompt = prompt if tools is None else Chat(prompt, template={"tools": tools.tools})
    return prompt, options | {"max_new_tokens": present[name] for name in lengths}, tools


def _prompt(present: dict[str, Any]) -> Any:
    names = [name for name in PROMPTS if name in present]
    if len(names) != 1:
        raise ValueError(f"{' and '.join(names) or 'no prompt'} given; expected one of {', '.join(PROMPTS)}")
    value, kind = present[names[0]], PROMPTS[names[0]]
    if not isinstance(value, kind):
        raise ValueError(f"{names[0]} is {_short(value)}; expected {'text' if kind is str else 'a list'}")
    return value


def _tools(present: dict[str, Any]) -> Tools | None:
    parallel = present.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool):
        raise ValueError(f"parallel_tool_calls is {_short(parallel)}; expected true or false")
    tools = read_tools(present.get("tools"), present.get("tool_choice"), parallel)
    if tools is not None and "messages" not in present:
        raise ValueError("tools beside a prompt that is no chat; give messages, or leave tools out")
    other = [message for message in present.get("messages", ()) if not isinstance(message, dict)]
    if tools is not None and other:
        raise ValueError(f"messages has {_short(other[0])}; expected objects with role and content")
    return tools


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    """The request in an OpenAI envelope, without what says nothing about the answer."""
    unknown = [name for name in fields if name not in ENVELOPE]
    if unknown:
        raise ValueError(f"field {_short(unknown[0])} beside body is not known; expected {', '.join(ENVELOPE)}")
    url, body = fields.get("url"), fields["body"]
    if url is not None and url not in URLS:
        raise ValueError(f"url {_short(url)}; expected one of {', '.join(URLS)}")
    if not isinstance(body, dict):
        raise ValueError(f"body is {_short(body)}; expected an object with messages or a prompt")
    for name, only in ONLY.items():
        if body.get(name) is not None and body[name] != only:
            raise ValueError(f"{name} is {_short(body[name])}; batch jobs know {json.dumps(only)} alone")
    return {name: value for name, value in body.items() if name not in (*PASSED_OVER, *ONLY)}


def _seed(seed: int, number: int) -> int:
    """A seed of its own for every row, so that the same prompt twice gets two samples."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _is_writable(text: str) -> bool:
    """Whether it is text at all: JSON can spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
