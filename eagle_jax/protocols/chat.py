"""/v1/chat/completions: a conversation gets its next message."""

from typing import Any

from eagle_jax.protocols.base import AnswerFormats, PendingResponse
from eagle_jax.protocols.calls import Call
from eagle_jax.protocols.chat_answers import ChatAnswers
from eagle_jax.protocols.choices import Choices, eagle_of, finish_reason
from eagle_jax.protocols.echo import vllm_prompt_logprobs
from eagle_jax.protocols.logprobs import TokenLogprobs
from eagle_jax.requests.results import Chunk, Result


class Chat(Choices):
    """Choices with a `message`, or a `delta` of one."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        self._shown: dict[int, TokenLogprobs] = {}  # each answer's tokens as far as they were sent
        self._answers = ChatAnswers()

    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        return self._answers.prepare(call, tokenizer, formats)

    @property
    def reasoning_tokens(self) -> int:
        return self._answers.reasoning_tokens

    def choice(self, pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
        ticket = pending.tickets[index]
        shown = TokenLogprobs(ticket.tokenizer, ticket.request.prompt)
        choice = {
            "index": index,
            "message": self._answers.message(pending, index, result),
            "finish_reason": self._answers.finish_reason(index, finish_reason(result)),
            "logprobs": shown.in_chat(*shown.in_text(result)),
        }
        return choice | ({"eagle": eagle_of(pending, index, result)} if pending.call.reports_steps else {})

    def more(self, pending: PendingResponse) -> dict[str, Any]:
        return vllm_prompt_logprobs(pending, 0)

    def first(self, pending: PendingResponse, index: int) -> dict[str, Any]:
        return _piece(index, {"role": "assistant", "content": ""})

    def deltas(self, pending: PendingResponse, chunk: Chunk) -> list[dict[str, Any]]:
        shown = self._shown_of(pending, chunk.index)
        empty: dict[str, Any] = {}
        deltas = self._answers.deltas(pending, chunk.index, chunk) or [empty]
        is_silent = not deltas[-1] and not (chunk.result or chunk.logprobs or pending.call.reports_steps)
        if is_silent:
            return []
        *pieces, last = [_piece(chunk.index, delta) for delta in deltas]
        last["finish_reason"] = self._ended(chunk)
        last["logprobs"] = shown.in_chat(*shown.in_text(chunk))
        return [*pieces, last]

    def _shown_of(self, pending: PendingResponse, index: int) -> TokenLogprobs:
        if index not in self._shown:
            ticket = pending.tickets[index]
            self._shown[index] = TokenLogprobs(ticket.tokenizer, ticket.request.prompt)
        return self._shown[index]

    def _ended(self, chunk: Chunk) -> str | None:
        return None if chunk.result is None else self._answers.finish_reason(chunk.index, finish_reason(chunk.result))


def _piece(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
