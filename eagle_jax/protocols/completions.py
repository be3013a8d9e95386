"""/v1/completions."""

from typing import Any, ClassVar

from eagle_jax.protocols.base import AnswerFormats, PendingResponse
from eagle_jax.protocols.calls import Call
from eagle_jax.protocols.choices import Choices, eagle_fields, finish_reason
from eagle_jax.protocols.echo import Echo, echoed_logprobs, join_logprobs, vllm_prompt_logprobs
from eagle_jax.requests.results import Chunk, Result


class Completion(Choices):
    """Choices with `text`."""

    prefix, object_type, chunk_object_type = "cmpl", "text_completion", "text_completion"
    defaults: ClassVar[dict[str, Any]] = {"max_new_tokens": 16}  # OpenAI's

    def __init__(self) -> None:
        super().__init__()
        self._echoes: dict[int, Echo] = {}

    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        return call

    def extra_fields(self, pending: PendingResponse) -> dict[str, Any]:
        return {}

    def choice(self, pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
        echoed = self.first_choice(pending, index) or {"text": "", "logprobs": None}
        formatter = self._formatter(pending, index)
        logprobs = formatter.completion_format(*formatter.next_tokens(result))
        choice = {
            "index": index,
            "text": echoed["text"] + self._text(index, result),
            "finish_reason": finish_reason(result),
            "logprobs": join_logprobs(echoed["logprobs"], logprobs),
        }
        choice |= vllm_prompt_logprobs(pending, index)
        return choice | ({"eagle": eagle_fields(pending, index, result)} if pending.call.reports_steps else {})

    def first_choice(self, pending: PendingResponse, index: int) -> dict[str, Any] | None:
        if not pending.call.echo:
            return None
        ticket = pending.tickets[index]
        self._echoes[index] = Echo(ticket.tokenizer, ticket.request.prompt)
        logprobs = echoed_logprobs(pending, index, self._formatter(pending, index))
        return {"index": index, "text": self._echoes[index].prompt(), "finish_reason": None, "logprobs": logprobs}

    def chunk_choices(self, pending: PendingResponse, chunk: Chunk) -> list[dict[str, Any]]:
        if not (chunk.text or chunk.logprobs or chunk.result is not None or pending.call.reports_steps):
            return []
        formatter = self._formatter(pending, chunk.index)
        piece = {
            "index": chunk.index,
            "text": self._text(chunk.index, chunk),
            "finish_reason": None if chunk.result is None else finish_reason(chunk.result),
            "logprobs": formatter.completion_format(*formatter.next_tokens(chunk)),
        }
        return [piece]

    def _text(self, index: int, piece: Chunk | Result) -> str:
        echo = self._echoes.get(index)
        is_last = isinstance(piece, Result) or piece.result is not None
        return piece.text if echo is None else echo.add(piece.token_ids, piece.text, is_last=is_last)
