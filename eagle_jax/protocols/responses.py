"""Responses of /v1/responses: an answer is a list of items, messages and calls of functions."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from eagle_jax.protocols.answering import Answering, event
from eagle_jax.protocols.calling import CallingShape
from eagle_jax.protocols.choices import finish_reason
from eagle_jax.scheduling.results import FAILED, Chunk, Result

NOT_A_NUMBER = "the model's logits became NaN, so no further token can be drawn"


class Responses(CallingShape):
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

    def content(self, answering: Answering, results: Sequence[Result]) -> dict[str, Any]:
        (result,) = results
        items = _Items(answering)
        for piece in self._calling.pieces(answering, 0, result):
            list(items.add(piece))
        ended = _status(result)
        list(items.end(ended))
        return _response(answering, ended, items.complete, result)

    async def events(self, answering: Answering, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        number, items, begun = 0, _Items(answering), False
        async for chunk in chunks:
            told: list[dict[str, Any]] = []
            if not begun and (chunk.text or chunk.result is not None):
                begun = True
                under_way = _response(answering, "in_progress", [], None)
                told += [{"type": f"response.{kind}", "response": under_way} for kind in ("created", "in_progress")]
            for piece in self._calling.pieces(answering, 0, chunk):
                told += items.add(piece)
            if chunk.result is not None:
                ended = _status(chunk.result)
                told += items.end(ended)
                whole = _response(answering, ended, items.complete, chunk.result)
                told.append({"type": f"response.{ended}", "response": whole})
            for number, fields in enumerate(told, start=number):
                yield f"event: {fields['type']}\n".encode() + event(fields | {"sequence_number": number})
            number += bool(told)


class _Items:
    """The items of an answer as they come, and the events that tell them.

    Attributes:
        complete: the items that are.
    """

    def __init__(self, answering: Answering):
        self._id = answering.id.removeprefix("resp-")
        self.complete: list[dict[str, Any]] = []
        self._texts: list[str] | None = None  # pieces of the message that is open

    def add(self, piece: str | dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A piece of text, or a call in the form of chats."""
        if isinstance(piece, str):
            if self._texts is None:
                yield from self._open()
            self._texts = [] if self._texts is None else self._texts
            self._texts.append(piece)
            yield self._event("output_text.delta", delta=piece, logprobs=[])
        else:
            yield from self._close("completed")
            yield from self._call(piece)

    def end(self, status: str) -> Iterator[dict[str, Any]]:
        """What is left when the answer is complete; one without anything has an empty message."""
        if self._texts is None and not self.complete:
            yield from self._open()
        yield from self._close(status)

    def _open(self) -> Iterator[dict[str, Any]]:
        self._texts = []
        item = self._message("in_progress") | {"content": []}
        yield {"type": "response.output_item.added", "output_index": len(self.complete), "item": item}
        yield self._event("content_part.added", part=_part(""))

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        if self._texts is None:
            return
        yield self._event("output_text.done", text="".join(self._texts), logprobs=[])
        yield self._event("content_part.done", part=_part("".join(self._texts)))
        yield from self._done(self._message("incomplete" if status == "failed" else status))
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

    def _message(self, status: str) -> dict[str, Any]:
        content = [_part("".join(self._texts or ()))]
        return {"type": "message", "id": self._message_id, "status": status, "role": "assistant", "content": content}

    @property
    def _message_id(self) -> str:
        return f"msg-{self._id}" + (f"-{len(self.complete)}" if self.complete else "")

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        place = {"item_id": self._message_id, "output_index": len(self.complete), "content_index": 0}
        return {"type": f"response.{kind}"} | place | fields


def _status(result: Result) -> str:
    return {"length": "incomplete", FAILED: "failed"}.get(finish_reason(result), "completed")


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(answering: Answering, status: str, output: list[dict[str, Any]], result: Result | None) -> dict[str, Any]:
    options, tools = answering.call.options, answering.call.tools
    incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
    failed = {"code": "server_error", "message": NOT_A_NUMBER} if status == "failed" else None
    return {
        "id": answering.id,
        "object": "response",
        "created_at": answering.created,
        "status": status,
        "error": failed,
        "incomplete_details": incomplete,
        "instructions": None,
        "max_output_tokens": options.get("max_new_tokens"),
        "metadata": {},
        "model": answering.name,
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
        "usage": None if result is None else _usage(answering, result),
    }


def _usage(answering: Answering, result: Result) -> dict[str, Any]:
    usage = answering.usage([result])
    read = usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": read.get("cached_tokens", 0)},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
