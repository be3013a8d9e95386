"""The prompt in a response: its text, and its tokens' log-probabilities."""

import os
from collections.abc import Sequence
from typing import Any

from eagle_jax.protocols.base import PendingResponse
from eagle_jax.protocols.logprobs import TokenLogprobs
from eagle_jax.text.detokenize import INCOMPLETE, decode


class Echo:
    """The text of one completion that begins with its prompt. Special tokens have no text, in the prompt too."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]):
        self._tokenizer, self._ids = tokenizer, list(prompt)
        self._text = decode(tokenizer, prompt)
        self._ends_inside_character = self._text.endswith(INCOMPLETE)  # the answer may complete it

    def prompt(self) -> str:
        """Returns the prompt's text."""
        return self._text.rstrip(INCOMPLETE)

    def add(self, token_ids: Sequence[int], text: str, *, is_last: bool) -> str:
        """Returns `text`, the text of a piece of the answer, with the end of a character that the prompt began."""
        if not self._ends_inside_character:
            return text
        self._ids += token_ids
        if not text and not is_last:
            return ""
        self._ends_inside_character = False
        shared = os.path.commonprefix([self._text, decode(self._tokenizer, self._ids)])
        return shared[len(self.prompt()) :] + text


def echoed_logprobs(pending: PendingResponse, index: int, formatter: TokenLogprobs) -> dict[str, Any] | None:
    """Returns the prompt's part of a completion's log-probabilities; None if not requested."""
    scores, options = pending.prompt_logprobs(index), pending.call.options
    if scores is None or not options["logprobs"]:
        return None
    count = options["top_logprobs"]
    top = None if scores.top_logprobs is None else [entries and entries[:count] for entries in scores.top_logprobs]
    return formatter.completion_format(scores.token_ids, scores.logprobs, top if count else None)


def join_logprobs(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Joins the log-probabilities of two consecutive pieces."""
    if first is None or second is None:
        return first or second
    return {name: first[name] and [*first[name], *(second[name] or ())] for name in first}


def vllm_prompt_logprobs(pending: PendingResponse, index: int) -> dict[str, Any]:
    """Returns the field `prompt_logprobs` in vLLM's format; empty if not requested."""
    count, scores = pending.call.prompt_logprobs, pending.prompt_logprobs(index)
    if count is None or scores is None:
        return {}
    tokenizer = pending.tickets[index].tokenizer

    def entry(token_id: int, logprob: float | None, rank: int | None) -> dict[str, Any]:
        text = "" if tokenizer is None else tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    positions: list[dict[str, Any] | None] = [None]
    for position, token_id in enumerate(scores.token_ids[1:], start=1):
        top = (scores.top_logprobs[position] or [] if scores.top_logprobs else [])[:count]
        entries = {
            str(other_id): entry(other_id, logprob, rank) for rank, (other_id, logprob) in enumerate(top, start=1)
        }
        prompt_entry = {str(token_id): entry(token_id, scores.logprobs[position], scores.ranks[position])}
        positions.append(prompt_entry | entries)
    return {"prompt_logprobs": positions}
