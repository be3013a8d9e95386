"""Functions that an answer may call: the fields of requests that name them, and the parts of responses that do."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from eagle_jax.api import (
    FORMATS,
    CallReader,
    Chat,
    ToolCall,
    ToolChoice,
    ToolFormat,
    call_id,
    check_tool_choice,
    check_tools,
    decode,
    format_of,
    knows_tools,
    name_of,
    template_of,
)
from eagle_jax.serving.errors import Refused
from eagle_jax.serving.fields import Fields, flag, wrong

KNOWN = f"--tool-format {' or '.join(FORMATS)}"


@dataclasses.dataclass(frozen=True)
class Tools:
    """Functions that an answer may call.

    Attributes:
        tools: they, as chat templates read them.
        choice: which of them may or must be called.
        parallel: whether several calls are wanted.
    """

    tools: list[dict[str, Any]]
    choice: ToolChoice
    parallel: bool

    @property
    def names(self) -> list[str]:
        return [name_of(tool) for tool in self.tools]


def tools_of(fields: Fields) -> Tools | None:
    """The functions of a request; None where none may be called. Raises `Refused`."""
    parallel = fields.take("parallel_tool_calls", flag, True)
    nothing: list[dict[str, Any]] = []
    tools = fields.take("tools", lambda name, value: _checked(name, check_tools, value), nothing)
    choice = fields.take("tool_choice", lambda name, value: _checked(name, check_tool_choice, value, tools), None)
    choice = choice or check_tool_choice(None, tools)
    return Tools(tools, choice, parallel) if tools and choice.mode != "none" else None


def format_for(tokenizer: Any, chat: Chat, tools: Tools | None, stated: str | None) -> ToolFormat | None:
    """The format that a model writes calls in; None where there is nothing to call.

    Args:
        stated: the name of a format; None is the one of the model's chat template.

    Raises:
        Refused: the template knows no tools, or its format is not known here.
    """
    template = template_of(tokenizer)
    spoken = [message for message in chat.messages if message["role"] == "tool" or "tool_calls" in message]
    if (tools is not None or spoken) and not knows_tools(template):
        ways = 'leave tools out, or give tool_choice "none"' if tools else "leave such messages out"
        raise wrong("tools" if tools else "messages", f"the model's chat template knows no tools; {ways}")
    if tools is None:
        return None
    format = format_of(template) if stated is None else FORMATS[stated]
    if format is None:
        raise wrong("tools", f"the model writes calls in a form that is not known here; start the server with {KNOWN}")
    if tools.choice.mode == "required":
        _enforce(tools)
    return format


def _enforce(tools: Tools) -> None:
    """Holds an answer to calling a function, by the schema of `eagle_jax.text.tools.call_schema`."""
    asked = "a function's name" if tools.choice.name else json.dumps(tools.choice.mode)
    raise wrong("tool_choice", f'tool_choice with {asked} cannot be enforced here; give "auto", or leave it out')


class ToolAnswer:
    """One answer that may call functions, told piece by piece.

    Args:
        tokenizer: the model's.
        format: how the model writes calls.
        tools: those that there are.
        id: of the answer; ids of calls follow from it.

    Attributes:
        content: the text of the answer so far, without calls.
        calls: the calls so far, in OpenAI's form.
    """

    def __init__(self, tokenizer: Any, format: ToolFormat, tools: Tools, id: str):
        self._tokenizer, self._format, self._id = tokenizer, format, id
        self._reader = CallReader(format, tools.names, tools.parallel)
        self._marks = _hidden(tokenizer, format)
        self._ids: list[int] = []
        self._plain, self._read = "", 0
        self.content = ""
        self.calls: list[dict[str, Any]] = []

    def add(self, token_ids: Sequence[int], new: str, is_last: bool) -> list[dict[str, Any]]:
        """Deltas of a message, for more tokens, whose own text is `new`."""
        self._ids += token_ids
        self._plain += new
        shown = self._shown()
        pieces = self._reader.add(shown[self._read :]) + (self._reader.end() if is_last else [])
        self._read = len(shown)
        return [delta for piece in pieces for delta in self._deltas(piece)]

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word for an answer that ends in calls."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    @property
    def message(self) -> dict[str, Any]:
        """The complete answer."""
        message = {"role": "assistant", "content": self.content or (None if self.calls else ""), "refusal": None}
        return message | ({"tool_calls": self.calls} if self.calls else {})

    def _deltas(self, piece: str | ToolCall) -> list[dict[str, Any]]:
        if isinstance(piece, str):
            self.content += piece
            return [{"content": piece}]
        index, function = len(self.calls), {"name": piece.name, "arguments": piece.arguments}
        call = {"id": call_id(self._format, self._id, index), "type": "function", "function": function}
        self.calls.append(call)
        named = {"index": index} | call | {"function": function | {"arguments": ""}}
        return [
            {"tool_calls": [named]},
            {"tool_calls": [{"index": index, "function": {"arguments": piece.arguments}}]},
        ]

    def _shown(self) -> str:
        """The text so far, with the marks of calls that are special tokens, which have no text of their own."""
        if not any(id_ in self._marks for id_ in self._ids):
            return self._plain
        parts: list[str] = []
        run: list[int] = []
        for id_ in [*self._ids, None]:
            if id_ is None or id_ in self._marks:
                parts += [decode(self._tokenizer, run), "" if id_ is None else self._marks[id_]]
                run = []
            else:
                run.append(id_)
        whole = "".join(parts)
        return whole[: len(whole) - (len(decode(self._tokenizer, self._ids)) - len(self._plain))]


def _hidden(tokenizer: Any, format: ToolFormat) -> dict[int, str]:
    """The marks of a format that are special tokens, by their ids."""
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in (format.begin, format.end) if mark}
    known = {id_: mark for mark, id_ in ids.items() if id_ is not None}  # of some tokenizers the unknown token's
    is_mark = {id_: mark for id_, mark in known.items() if tokenizer.convert_ids_to_tokens(id_) == mark}
    return {id_: mark for id_, mark in is_mark.items() if decode(tokenizer, [id_]) == ""}


def _checked(name: str, check: Any, *values: Any) -> Any:
    try:
        return check(*values)
    except ValueError as error:
        raise Refused(400, str(error), param=name) from None
