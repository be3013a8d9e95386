"""/v1/responses: an answer is a list of output items."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from eagle_jax.chat.reasoning import ReasoningPiece
from eagle_jax.protocols.base import PendingResponse, sse_event
from eagle_jax.protocols.chat_answers import ChatFormat
from eagle_jax.protocols.choices import finish_reason
from eagle_jax.requests.results import FAILED, Chunk, Result

NOT_A_NUMBER = "the model's logits became NaN, so no further token can be drawn"


class Responses(ChatFormat):
    """Responses with output items: messages, reasoning and function calls."""

    prefix = "resp"
    request_field_names = {
        r"max_completion_tokens": "max_output_tokens",
        r"messages\b": "input",
        r"reasoning_effort": "reasoning.effort",
        r"response_format(\.json_schema)?": "text.format",
        r"(tools\[\d+\])\.function": r"\1",
        r"(input\[\d+\]\.output)\.content": r"\1",
    }

    def content(self, pending: PendingResponse, results: Sequence[Result]) -> dict[str, Any]:
        (result,) = results
        items = _OutputItems(pending)
        for piece in self._answers.pieces(pending, 0, result):
            list(items.add(piece))
        status = _status(result)
        list(items.end(status))
        return _response(pending, status, items.complete, result, self._answers.reasoning_tokens)

    async def events(self, pending: PendingResponse, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        number, items, started = 0, _OutputItems(pending), False
        async for chunk in chunks:
            updates: list[dict[str, Any]] = []
            pieces = list(self._answers.pieces(pending, 0, chunk))
            if not started and (pieces or chunk.result is not None):
                started = True
                in_progress = _response(pending, "in_progress", [], None)
                updates += [
                    {"type": f"response.{kind}", "response": in_progress} for kind in ("created", "in_progress")
                ]
            for piece in pieces:
                updates += items.add(piece)
            if chunk.result is not None:
                status = _status(chunk.result)
                updates += items.end(status)
                tokens = self._answers.reasoning_tokens
                response = _response(pending, status, items.complete, chunk.result, tokens)
                updates.append({"type": f"response.{status}", "response": response})
            for number, fields in enumerate(updates, start=number):
                yield f"event: {fields['type']}\n".encode() + sse_event(fields | {"sequence_number": number})
            number += bool(updates)


# Type of an item of text; type of its parts, which is also the prefix of its events.
KINDS = {str: ("message", "output_text"), ReasoningPiece: ("reasoning", "reasoning_text")}


class _OutputItems:
    """Builds the output items of an answer and their events.

    Attributes:
        complete: the complete items.
    """

    def __init__(self, pending: PendingResponse):
        self._id = pending.id.removeprefix("resp-")
        self.complete: list[dict[str, Any]] = []
        self._texts: list[str] | None = None  # pieces of the open item
        self._kind: type = str  # type of its pieces

    def add(self, piece: str | ReasoningPiece | dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the events of a piece of text or reasoning, or of a tool call in OpenAI's chat format."""
        if isinstance(piece, dict):
            yield from self._close("completed")
            yield from self._call(piece)
            return
        if self._kind is not type(piece):
            yield from self._close("completed")
        if self._texts is None:
            yield from self._open(type(piece))
        self._texts = [] if self._texts is None else self._texts
        text = piece if isinstance(piece, str) else piece.text
        self._texts.append(text)
        yield self._event("delta", delta=text)

    def end(self, status: str) -> Iterator[dict[str, Any]]:
        """Yields the remaining events once the answer is complete; an empty answer is an empty message."""
        if self._texts is None and not self.complete:
            yield from self._open(str)
        yield from self._close(status)

    def _open(self, kind: type) -> Iterator[dict[str, Any]]:
        self._texts, self._kind = [], kind
        item = self._item("in_progress") | {"content": []}
        yield {"type": "response.output_item.added", "output_index": len(self.complete), "item": item}
        yield self._part_event("added")

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        if self._texts is None:
            return
        yield self._event("done", text="".join(self._texts))
        yield self._part_event("done")
        yield from self._done(self._item("incomplete" if status == "failed" else status))
        self._texts = None

    def _call(self, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
        index = len(self.complete)
        location = {"item_id": f"fc-{self._id}-{index}", "output_index": index}
        item = {"type": "function_call", "id": location["item_id"], "call_id": call["id"]} | call["function"]
        started_item = item | {"arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": started_item}
        kind, arguments = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{kind}.delta"} | location | {"delta": arguments}
        yield {"type": f"{kind}.done"} | location | {"name": item["name"], "arguments": arguments}
        yield from self._done(item | {"status": "completed"})

    def _done(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"type": "response.output_item.done", "output_index": len(self.complete), "item": item}
        self.complete.append(item)

    def _item(self, status: str) -> dict[str, Any]:
        item = {"type": KINDS[self._kind][0], "id": self._location["item_id"], "status": status}
        kind_fields: dict[str, Any] = {"role": "assistant"} if self._kind is str else {"summary": []}
        return item | kind_fields | {"content": [self._part()]}

    def _part(self) -> dict[str, Any]:
        part = {"type": KINDS[self._kind][1], "text": "".join(self._texts or ())}
        return part | ({"annotations": [], "logprobs": []} if self._kind is str else {})

    @property
    def _location(self) -> dict[str, Any]:
        number = f"-{len(self.complete)}" if self.complete else ""
        prefix = "msg" if self._kind is str else "rs"
        return {"item_id": f"{prefix}-{self._id}{number}", "output_index": len(self.complete), "content_index": 0}

    def _part_event(self, kind: str) -> dict[str, Any]:
        return {"type": f"response.content_part.{kind}"} | self._location | {"part": self._part()}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        extra: dict[str, Any] = {"logprobs": []} if self._kind is str else {}
        return {"type": f"response.{KINDS[self._kind][1]}.{kind}"} | self._location | fields | extra


def _status(result: Result) -> str:
    return {"length": "incomplete", FAILED: "failed"}.get(finish_reason(result), "completed")


def _response(
    pending: PendingResponse,
    status: str,
    output: list[dict[str, Any]],
    result: Result | None,
    reasoning_tokens: int = 0,
) -> dict[str, Any]:
    options, tools = pending.call.options, pending.call.tools
    incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
    error = {"code": "server_error", "message": NOT_A_NUMBER} if status == "failed" else None
    return {
        "id": pending.id,
        "object": "response",
        "created_at": pending.created,
        "status": status,
        "error": error,
        "incomplete_details": incomplete,
        "instructions": None,
        "max_output_tokens": options.get("max_new_tokens"),
        "metadata": {},
        "model": pending.name,
        "output": output,
        "parallel_tool_calls": tools is None or tools.parallel,
        "previous_response_id": None,
        "store": False,
        "temperature": options.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto" if tools is None else tools.choice.mode,
        "tools": []
        if tools is None
        else [{"type": "function", "strict": False} | tool["function"] for tool in tools.tools],
        "top_p": options.get("top_p"),
        "truncation": "disabled",
        "usage": None if result is None else _usage(pending, result, reasoning_tokens),
    }


def _usage(pending: PendingResponse, result: Result, reasoning_tokens: int) -> dict[str, Any]:
    usage = pending.usage([result])
    prompt_details = usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt_details.get("cached_tokens", 0)},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["total_tokens"],
    }
