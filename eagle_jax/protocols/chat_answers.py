"""The answers to one chat request: reasoning, text and tool calls."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from eagle_jax.chat.chat_answer import ChatAnswer
from eagle_jax.chat.harmony import ANALYSIS, FINAL, STOPS
from eagle_jax.chat.messages import is_message
from eagle_jax.chat.prompts import Chat, encode
from eagle_jax.chat.reasoning import ReasoningFormat, ReasoningPiece, ends_inside_reasoning, reasoning_format_for
from eagle_jax.chat.tool_formats import FORMATS, ToolFormat, tool_format_for
from eagle_jax.chat.tools import ToolChoice, Tools, call_options
from eagle_jax.fields import wrong
from eagle_jax.protocols.base import AnswerFormats, PendingResponse, ResponseFormat
from eagle_jax.protocols.calls import Call
from eagle_jax.requests.results import Chunk, Result
from eagle_jax.structured.checks import FORMS
from eagle_jax.text.detokenize import special_ids


class ChatAnswers:
    """Reads the answers to one request."""

    def __init__(self) -> None:
        self._format: ToolFormat | None = None
        self._reasoning: ReasoningFormat | None = None
        self._separates = True
        self._answers: dict[int, ChatAnswer] = {}

    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        """Adapts the request to a model with this tokenizer.

        Raises:
            FieldError: the template does not support tools, or its format of tool calls is unknown or has no schema.
        """
        reasoning, is_parsed = reasoning_format_for(tokenizer, formats.reasoning), formats.reasoning != "none"
        self._separates = is_parsed and call.separates_reasoning
        if not is_parsed and (default := reasoning_format_for(tokenizer)) is not None and default.channels:
            reasoning = default  # channels must be parsed: an answer has no text outside them
        self._reasoning = reasoning if self._separates or reasoning is not None and reasoning.channels else None
        self._format = _format_for(tokenizer, call.prompts[0], call.tools, formats.tools)
        form = _call_form_options(call.tools, self._format, call.options)
        kept_options = {
            name: value for name, value in call.options.items() if "json_schema" not in form or name not in FORMS
        }
        options = kept_options | form
        if reasoning is not None and any(name in options for name in FORMS):
            reasoning_options = form_options(tokenizer, call.prompts[0], reasoning, is_call="json_schema" in form)
            options |= {
                name: value for name, value in reasoning_options.items() if is_parsed or name != "form_reasoning"
            }
        if reasoning is not None and reasoning.channels:
            stop_ids = special_ids(tokenizer, STOPS)
            options |= {"stop_token_ids": tuple(dict.fromkeys([*options.get("stop_token_ids", ()), *stop_ids]))}
        return dataclasses.replace(call, options=options)

    def answer_of(self, pending: PendingResponse, index: int) -> ChatAnswer | None:
        """Returns the parsed answer of a choice; None if the answer is plain text."""
        if index not in self._answers:
            tools = pending.call.tools
            tools_and_format = None if tools is None or self._format is None else (tools, self._format)
            if tools_and_format is None and self._reasoning is None:
                return None
            ticket, id = pending.tickets[index], f"{pending.id}-{index}"
            options: dict[str, Any] = dict(
                prompt=ticket.request.prompt, reasoning=self._reasoning, tools=tools_and_format
            )
            options |= dict(separate=self._separates)
            self._answers[index] = ChatAnswer(ticket.tokenizer, id, **options)
        return self._answers[index]

    def deltas(self, pending: PendingResponse, index: int, new: Chunk | Result) -> list[dict[str, Any]]:
        """Returns the message deltas for a piece of an answer."""
        answer, is_last = self.answer_of(pending, index), isinstance(new, Result) or new.result is not None
        if answer is None:
            return [{"content": new.text}] if new.text else []
        deltas = answer.add(new.token_ids, new.text, is_last=is_last)
        includes_reasoning = pending.call.includes_reasoning
        return [delta for delta in deltas if includes_reasoning or "reasoning_content" not in delta]

    def message(self, pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
        """Returns the complete message of a choice."""
        answer = self.answer_of(pending, index)
        if answer is None:
            return {"role": "assistant", "content": result.text, "refusal": None}
        answer.add(result.token_ids, result.text, is_last=True)
        hidden = () if pending.call.includes_reasoning else ("reasoning_content",)
        return {name: value for name, value in answer.message.items() if name not in hidden}

    def pieces(
        self, pending: PendingResponse, index: int, new: Chunk | Result
    ) -> Iterator[str | ReasoningPiece | dict[str, Any]]:
        """Yields the texts, reasoning and complete tool calls (in OpenAI's format) of a piece of an answer."""
        for delta in self.deltas(pending, index, new):
            if "content" in delta:
                yield delta["content"]
            elif "reasoning_content" in delta:
                yield ReasoningPiece(delta["reasoning_content"])
            elif "id" in (call_delta := delta["tool_calls"][0]):
                yield self._answers[index].calls[call_delta["index"]]

    def finish_reason(self, index: int, reason: str) -> str:
        """Returns OpenAI's finish reason of a choice."""
        return self._answers[index].finish_reason(reason) if index in self._answers else reason

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning in all answers so far."""
        return sum(answer.reasoning_tokens for answer in self._answers.values())


class ChatFormat(ResponseFormat):
    """A response format whose answers may contain reasoning and tool calls."""

    def __init__(self) -> None:
        self._answers = ChatAnswers()

    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        return self._answers.prepare(call, tokenizer, formats)


def _format_for(tokenizer: Any, chat: Chat, tools: Tools | None, stated: str | None) -> ToolFormat | None:
    """Returns the format of the model's tool calls; None if the request has no tools."""
    tool_messages = [
        message
        for message in chat.messages
        if is_message(message) and (message["role"] == "tool" or message.get("tool_calls"))
    ]
    if tools is None and not tool_messages:
        return None
    try:
        format = tool_format_for(tokenizer, None if stated is None else FORMATS[stated])
    except ValueError as error:
        raise wrong("messages" if tools is None else "tools", str(error)) from None
    return None if tools is None else format


def form_options(tokenizer: Any, chat: Chat, reasoning: ReasoningFormat, is_call: bool) -> dict[str, Any]:
    """Returns the options that allow reasoning before structured output.

    Args:
        is_call: whether the form is a tool call, which includes the texts around it.
    """
    if reasoning.channels:
        final = {} if is_call else {"form_between": FINAL}
        return {"form_reasoning": ANALYSIS, **final}
    try:
        prompt = encode(tokenizer, chat, len(tokenizer), "messages")
    except ValueError:  # raised again when the request is encoded
        return {}
    return {
        "form_reasoning": (
            "" if ends_inside_reasoning(reasoning, tokenizer, prompt) else reasoning.begin,
            reasoning.end,
        )
    }


def _call_form_options(tools: Tools | None, format: ToolFormat | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that constrain answers to a required tool call, or to a tool call or the answer's form."""
    if tools is None or format is None:
        return {}
    has_form = any(name in options for name in FORMS)
    required = dataclasses.replace(tools, choice=ToolChoice("required", tools.choice.name))
    try:
        form = call_options(required if has_form else tools, format)
    except ValueError as error:
        raise wrong("tools", str(error)) from None
    if has_form and tools.choice.mode == "auto":
        return {"call_schema": form["json_schema"]}
    return form
