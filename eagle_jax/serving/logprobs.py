"""Log-probabilities of tokens in the two forms that OpenAI has for them."""

from collections.abc import Sequence
from typing import Any

from eagle_jax.api import INCOMPLETE, Spelling


class Spelled:
    """The tokens of one answer as its responses show them, told piece by piece."""

    def __init__(self, tokenizer: Any):
        self._tokenizer, self._spelling = tokenizer, Spelling(tokenizer)

    def in_chat(self, token_ids: Sequence[int], logprobs: Sequence[float] | None) -> dict[str, Any] | None:
        """The next tokens in chat's form; None where none were asked for.

        `bytes` are those of what a token adds to the text: none of a special token, null of a part of a character.
        """
        if logprobs is None:
            return None
        content = [
            {"token": shown, "logprob": logprob, "bytes": _bytes(shown, added), "top_logprobs": []}
            for (shown, added, _), logprob in zip(map(self._next, token_ids), logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def in_completion(self, token_ids: Sequence[int], logprobs: Sequence[float] | None) -> dict[str, Any] | None:
        """The next tokens in completions' form, each with its place in the answer's text."""
        if logprobs is None:
            return None
        spelled = [self._next(token) for token in token_ids]
        return {
            "tokens": [shown for shown, _, _ in spelled],
            "token_logprobs": list(logprobs),
            "top_logprobs": None,
            "text_offset": [offset for _, _, offset in spelled],
        }

    def _next(self, token_id: int) -> tuple[str, str, int]:
        """A token as it is shown, what it adds to the text, and where. One that adds nothing is shown as it is."""
        if self._tokenizer is None:
            return "", "", 0
        offset, added = self._spelling.length, self._spelling.add(token_id)
        return added or self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False), added, offset


def _bytes(shown: str, added: str) -> list[int] | None:
    return None if not added and INCOMPLETE in shown else list(added.encode())
