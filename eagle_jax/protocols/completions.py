"""/v1/completions: a prompt is written on."""

from typing import Any, ClassVar

from eagle_jax.protocols.base import AnswerFormats, PendingResponse
from eagle_jax.protocols.calls import Call
from eagle_jax.protocols.choices import Choices, eagle_of, finish_reason
from eagle_jax.protocols.echo import Echo, echoed_logprobs, joined, vllm_prompt_logprobs
from eagle_jax.protocols.logprobs import TokenLogprobs
from eagle_jax.requests.results import Chunk, Result


class Completion(Choices):
    """Choices with `text`."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"
    defaults: ClassVar[dict[str, Any]] = {"max_new_tokens": 16}  # OpenAI's

    def __init__(self) -> None:
        self._shown: dict[int, TokenLogprobs] = {}  # each answer's tokens as far as they were sent
        self._echoes: dict[int, Echo] = {}

    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        return call

    def more(self, pending: PendingResponse) -> dict[str, Any]:
        return {}

    def choice(self, pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
        begun = self.first(pending, index) or {"text": "", "logprobs": None}
        shown = self._token_logprobs(pending, index)
        logprobs = shown.in_completion(*shown.in_text(result))
        choice = {
            "index": index,
            "text": begun["text"] + self._text(index, result),
            "finish_reason": finish_reason(result),
            "logprobs": joined(begun["logprobs"], logprobs),
        }
        choice |= vllm_prompt_logprobs(pending, index)
        return choice | ({"eagle": eagle_of(pending, index, result)} if pending.call.reports_steps else {})

    def first(self, pending: PendingResponse, index: int) -> dict[str, Any] | None:
        if not pending.call.echo:
            return None
        ticket = pending.tickets[index]
        self._echoes[index] = Echo(ticket.tokenizer, ticket.request.prompt)
        logprobs = echoed_logprobs(pending, index, self._token_logprobs(pending, index))
        return {"index": index, "text": self._echoes[index].prompt(), "finish_reason": None, "logprobs": logprobs}

    def deltas(self, pending: PendingResponse, chunk: Chunk) -> list[dict[str, Any]]:
        if not (chunk.text or chunk.logprobs or chunk.result is not None or pending.call.reports_steps):
            return []
        shown = self._token_logprobs(pending, chunk.index)
        piece = {
            "index": chunk.index,
            "text": self._text(chunk.index, chunk),
            "finish_reason": None if chunk.result is None else finish_reason(chunk.result),
            "logprobs": shown.in_completion(*shown.in_text(chunk)),
        }
        return [piece]

    def _token_logprobs(self, pending: PendingResponse, index: int) -> TokenLogprobs:
        if index not in self._shown:
            ticket = pending.tickets[index]
            before = () if pending.call.echo else ticket.request.prompt  # an echoed prompt is shown first
            self._shown[index] = TokenLogprobs(ticket.tokenizer, before)
        return self._shown[index]

    def _text(self, index: int, piece: Chunk | Result) -> str:
        echo = self._echoes.get(index)
        is_last = isinstance(piece, Result) or piece.result is not None
        return piece.text if echo is None else echo.add(piece.token_ids, piece.text, is_last=is_last)
