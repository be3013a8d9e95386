"""/v1/chat/completions."""

from typing import Any

from eagle_jax.protocols.base import AnswerFormats, PendingResponse
from eagle_jax.protocols.calls import Call
from eagle_jax.protocols.chat_answers import ChatAnswers
from eagle_jax.protocols.choices import Choices, eagle_fields, finish_reason
from eagle_jax.protocols.echo import vllm_prompt_logprobs
from eagle_jax.requests.results import Chunk, Result


class Chat(Choices):
    """Choices with a `message`, or in a stream with a `delta`."""

    prefix, object_type, chunk_object_type = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        super().__init__()
        self._answers = ChatAnswers()

    def prepare(self, call: Call, tokenizer: Any, formats: AnswerFormats) -> Call:
        return self._answers.prepare(call, tokenizer, formats)

    @property
    def reasoning_tokens(self) -> int:
        return self._answers.reasoning_tokens

    def choice(self, pending: PendingResponse, index: int, result: Result) -> dict[str, Any]:
        formatter = self._formatter(pending, index)
        choice = {
            "index": index,
            "message": self._answers.message(pending, index, result),
            "finish_reason": self._answers.finish_reason(index, finish_reason(result)),
            "logprobs": formatter.chat_format(*formatter.next_tokens(result)),
        }
        return choice | ({"eagle": eagle_fields(pending, index, result)} if pending.call.reports_steps else {})

    def extra_fields(self, pending: PendingResponse) -> dict[str, Any]:
        return vllm_prompt_logprobs(pending, 0)

    def first_choice(self, pending: PendingResponse, index: int) -> dict[str, Any]:
        return _chunk_choice(index, {"role": "assistant", "content": ""})

    def chunk_choices(self, pending: PendingResponse, chunk: Chunk) -> list[dict[str, Any]]:
        formatter = self._formatter(pending, chunk.index)
        empty: dict[str, Any] = {}
        deltas = self._answers.deltas(pending, chunk.index, chunk) or [empty]
        is_silent = not deltas[-1] and not (chunk.result or chunk.logprobs or pending.call.reports_steps)
        if is_silent:
            return []
        *pieces, last = [_chunk_choice(chunk.index, delta) for delta in deltas]
        last["finish_reason"] = self._finish_reason(chunk)
        last["logprobs"] = formatter.chat_format(*formatter.next_tokens(chunk))
        return [*pieces, last]

    def _finish_reason(self, chunk: Chunk) -> str | None:
        return None if chunk.result is None else self._answers.finish_reason(chunk.index, finish_reason(chunk.result))


def _chunk_choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
