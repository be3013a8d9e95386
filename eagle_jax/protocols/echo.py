"""What a response says of its prompt: its text, and its tokens' log-probabilities."""

import os
from collections.abc import Sequence
from typing import Any

from eagle_jax.protocols.base import PendingResponse
from eagle_jax.protocols.logprobs import TokenLogprobs
from eagle_jax.text.detokenize import INCOMPLETE, decode


class Echo:
    """The text of one completion, sent piece by piece, which begins with its prompt.

    Special tokens have no text, in the prompt neither.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]):
        self._tokenizer, self._ids = tokenizer, list(prompt)
        self._text = decode(tokenizer, prompt)
        self._is_open = self._text.endswith(INCOMPLETE)  # within a character, which the answer may complete

    def prompt(self) -> str:
        """Returns the prompt's text."""
        return self._text.rstrip(INCOMPLETE)

    def add(self, token_ids: Sequence[int], text: str, *, is_last: bool) -> str:
        """Returns the text that a piece of the answer adds, whose own text is `text`."""
        if not self._is_open:
            return text
        self._ids += token_ids
        if not text and not is_last:
            return ""
        self._is_open = False
        both = os.path.commonprefix([self._text, decode(self._tokenizer, self._ids)])
        return both[len(self.prompt()) :] + text


def echoed_logprobs(pending: PendingResponse, index: int, shown: TokenLogprobs) -> dict[str, Any] | None:
    """Returns the prompt's part of a completion's log-probabilities; None where none were asked for."""
    scored, asked = pending.scored(index), pending.call.options
    if scored is None or not asked["logprobs"]:
        return None
    count = asked["top_logprobs"]
    top = None if scored.top_logprobs is None else [place and place[:count] for place in scored.top_logprobs]
    return shown.in_completion(scored.token_ids, scored.logprobs, top if count else None)


def joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the log-probabilities of two pieces that follow each other."""
    if first is None or second is None:
        return first or second
    return {name: first[name] and [*first[name], *(second[name] or ())] for name in first}


def vllm_prompt_logprobs(pending: PendingResponse, index: int) -> dict[str, Any]:
    """Returns the field `prompt_logprobs` as vLLM has it; no field where it was not asked for."""
    count, scored = pending.call.prompt_logprobs, pending.scored(index)
    if count is None or scored is None:
        return {}
    tokenizer = pending.tickets[index].tokenizer

    def entry(token_id: int, logprob: float | None, rank: int | None) -> dict[str, Any]:
        text = "" if tokenizer is None else tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    places: list[dict[str, Any] | None] = [None]
    for place, token_id in enumerate(scored.token_ids[1:], start=1):
        top = (scored.top_logprobs[place] or [] if scored.top_logprobs else [])[:count]
        entries = {str(id_): entry(id_, logprob, rank) for rank, (id_, logprob) in enumerate(top, start=1)}
        prompt_entry = {str(token_id): entry(token_id, scored.logprobs[place], scored.ranks[place])}
        places.append(prompt_entry | entries)
    return {"prompt_logprobs": places}
