"""The functions that the answers to one request call, if they may call any."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from eagle_jax.fields import wrong
from eagle_jax.protocols.answering import Answering, Shape
from eagle_jax.protocols.calls import Call
from eagle_jax.scheduling.results import Chunk, Result
from eagle_jax.scheduling.structured import FORMS
from eagle_jax.text.messages import is_message
from eagle_jax.text.prompts import Chat
from eagle_jax.text.tool_answer import ToolAnswer
from eagle_jax.text.tool_calls import FORMATS, ToolFormat, tool_format_for
from eagle_jax.text.tools import ToolChoice, Tools, call_options


class Calling:
    """Reads calls from the answers to one request."""

    def __init__(self) -> None:
        self._format: ToolFormat | None = None
        self._answers: dict[int, ToolAnswer] = {}

    def prepare(self, call: Call, tokenizer: Any, tool_format: str | None) -> Call:
        """The request as a model with this tokenizer is asked.

        Args:
            tool_format: the name of a format; None is the one of the model's chat template.

        Raises:
            FieldError: the template knows no tools, its format is not known here, or no answer can call them.
        """
        self._format = _format_for(tokenizer, call.prompts[0], call.tools, tool_format)
        form = _form_of_calls(call.tools, self._format, call.options)
        kept = {name: value for name, value in call.options.items() if "json_schema" not in form or name not in FORMS}
        return dataclasses.replace(call, options=kept | form)

    def of(self, answering: Answering, index: int) -> ToolAnswer | None:
        """What a choice calls; None where it may call nothing."""
        tools, ticket = answering.call.tools, answering.tickets[index]
        if self._format is None or tools is None:
            return None
        if index not in self._answers:
            self._answers[index] = ToolAnswer(ticket.tokenizer, self._format, tools, f"{answering.id}-{index}")
        return self._answers[index]

    def pieces(self, answering: Answering, index: int, new: Chunk | Result) -> Iterator[str | dict[str, Any]]:
        """The texts, and the complete calls in OpenAI's form, that a piece of an answer brings."""
        answer = self.of(answering, index)
        if answer is None:
            yield from [new.text] if new.text else []
            return
        is_last = isinstance(new, Result) or new.result is not None
        for delta in answer.add(new.token_ids, new.text, is_last=is_last):
            if "content" in delta:
                yield delta["content"]
            elif "id" in (begun := delta["tool_calls"][0]):
                yield answer.calls[begun["index"]]

    def finish_reason(self, index: int, reason: str) -> str:
        """How a choice ended, in OpenAI's words."""
        return self._answers[index].finish_reason(reason) if index in self._answers else reason


class CallingShape(Shape):
    """A shape whose answers may call functions."""

    def __init__(self) -> None:
        self._calling = Calling()

    def prepare(self, call: Call, tokenizer: Any, tool_format: str | None) -> Call:
        return self._calling.prepare(call, tokenizer, tool_format)


def _format_for(tokenizer: Any, chat: Chat, tools: Tools | None, stated: str | None) -> ToolFormat | None:
    """The format that a model writes calls in; None where there is nothing to call."""
    spoken = [one for one in chat.messages if is_message(one) and (one["role"] == "tool" or one.get("tool_calls"))]
    if tools is None and not spoken:
        return None
    try:
        format = tool_format_for(tokenizer, None if stated is None else FORMATS[stated])
    except ValueError as error:
        raise wrong("messages" if tools is None else "tools", str(error)) from None
    return None if tools is None else format


def _form_of_calls(tools: Tools | None, format: ToolFormat | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that hold answers to a call, where a request asks for one, or to a call or the form that it has."""
    if tools is None or format is None:
        return {}
    has_form = any(name in options for name in FORMS)
    required = dataclasses.replace(tools, choice=ToolChoice("required", tools.choice.name))
    try:
        form = call_options(required if has_form else tools, format)
    except ValueError as error:
        raise wrong("tools", str(error)) from None
    if has_form and tools.choice.mode == "auto":
        return {"call_schema": form["json_schema"], "call_between": form["json_between"]}
    return form
