"""Responses of /v1/responses: an answer is a list of items, messages and calls of functions."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from eagle_jax.chat.reasoning import Thought
from eagle_jax.protocols.base import PendingResponse, event
from eagle_jax.protocols.chat_answers import ChatFormat
from eagle_jax.protocols.choices import finish_reason
from eagle_jax.requests.results import FAILED, Chunk, Result

NOT_A_NUMBER = "the model's logits became NaN, so no further token can be drawn"


class Responses(ChatFormat):
    """A response with messages and calls."""

    prefix = "resp"
    renamed = {
        r"max_completion_tokens": "max_output_tokens",
        r"messages\b": "input",
        r"reasoning_effort": "reasoning.effort",
        r"response_format(\.json_schema)?": "text.format",
        r"(tools\[\d+\])\.function": r"\1",
        r"(input\[\d+\]\.output)\.content": r"\1",
    }

    def content(self, pending: PendingResponse, results: Sequence[Result]) -> dict[str, Any]:
        (result,) = results
        items = _Items(pending)
        for piece in self._answers.pieces(pending, 0, result):
            list(items.add(piece))
        ended = _status(result)
        list(items.end(ended))
        return _response(pending, ended, items.complete, result, self._answers.reasoning_tokens)

    async def events(self, pending: PendingResponse, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        number, items, begun = 0, _Items(pending), False
        async for chunk in chunks:
            updates: list[dict[str, Any]] = []
            pieces = list(self._answers.pieces(pending, 0, chunk))
            if not begun and (pieces or chunk.result is not None):
                begun = True
                under_way = _response(pending, "in_progress", [], None)
                updates += [{"type": f"response.{kind}", "response": under_way} for kind in ("created", "in_progress")]
            for piece in pieces:
                updates += items.add(piece)
            if chunk.result is not None:
                ended = _status(chunk.result)
                updates += items.end(ended)
                tokens = self._answers.reasoning_tokens
                response = _response(pending, ended, items.complete, chunk.result, tokens)
                updates.append({"type": f"response.{ended}", "response": response})
            for number, fields in enumerate(updates, start=number):
                yield f"event: {fields['type']}\n".encode() + event(fields | {"sequence_number": number})
            number += bool(updates)


# What an item of text is called, its parts, and the events of its text.
KINDS = {str: ("message", "output_text"), Thought: ("reasoning", "reasoning_text")}


class _Items:
    """The items of an answer as they come, and their events.

    Attributes:
        complete: the items that are.
    """

    def __init__(self, pending: PendingResponse):
        self._id = pending.id.removeprefix("resp-")
        self.complete: list[dict[str, Any]] = []
        self._texts: list[str] | None = None  # pieces of the item that is open
        self._kind: type = str  # of its pieces

    def add(self, piece: str | Thought | dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the events of a piece of text or of reasoning, or of a call in the form of chats."""
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
        """Yields the remaining events once the answer is complete; one without anything has an empty message."""
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
        place = len(self.complete)
        place_of = {"item_id": f"fc-{self._id}-{place}", "output_index": place}
        item = {"type": "function_call", "id": place_of["item_id"], "call_id": call["id"]} | call["function"]
        begun = item | {"arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": place, "item": begun}
        kind, arguments = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{kind}.delta"} | place_of | {"delta": arguments}
        yield {"type": f"{kind}.done"} | place_of | {"name": item["name"], "arguments": arguments}
        yield from self._done(item | {"status": "completed"})

    def _done(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"type": "response.output_item.done", "output_index": len(self.complete), "item": item}
        self.complete.append(item)

    def _item(self, status: str) -> dict[str, Any]:
        item = {"type": KINDS[self._kind][0], "id": self._place["item_id"], "status": status}
        kind_fields: dict[str, Any] = {"role": "assistant"} if self._kind is str else {"summary": []}
        return item | kind_fields | {"content": [self._part()]}

    def _part(self) -> dict[str, Any]:
        part = {"type": KINDS[self._kind][1], "text": "".join(self._texts or ())}
        return part | ({"annotations": [], "logprobs": []} if self._kind is str else {})

    @property
    def _place(self) -> dict[str, Any]:
        number = f"-{len(self.complete)}" if self.complete else ""
        prefix = "msg" if self._kind is str else "rs"
        return {"item_id": f"{prefix}-{self._id}{number}", "output_index": len(self.complete), "content_index": 0}

    def _part_event(self, kind: str) -> dict[str, Any]:
        return {"type": f"response.content_part.{kind}"} | self._place | {"part": self._part()}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        more: dict[str, Any] = {"logprobs": []} if self._kind is str else {}
        return {"type": f"response.{KINDS[self._kind][1]}.{kind}"} | self._place | fields | more


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
    failed = {"code": "server_error", "message": NOT_A_NUMBER} if status == "failed" else None
    return {
        "id": pending.id,
        "object": "response",
        "created_at": pending.created,
        "status": status,
        "error": failed,
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
    read = usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": read.get("cached_tokens", 0)},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["total_tokens"],
    }
