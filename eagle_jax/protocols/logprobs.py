"""Log-probabilities of tokens in OpenAI's two formats."""

import copy
from collections.abc import Sequence
from typing import Any

from eagle_jax.requests.results import Chunk, Result
from eagle_jax.text.detokenize import INCOMPLETE, IncrementalDetokenizer

# The top tokens at each position, with their log-probabilities; None at the first position of a prompt.
Top = Sequence[Sequence[tuple[int, float]] | None]


class TokenLogprobs:
    """Formats the tokens of one answer, piece by piece."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()):
        self._tokenizer, self._detokenizer = tokenizer, IncrementalDetokenizer(tokenizer, prompt)
        self._last_text_start = -1  # text offset of the last token with text
        self._answer_start: int | None = None  # text offset of the answer

    def next_tokens(self, piece: Result | Chunk) -> tuple[list[int], list[float] | None, Top | None]:
        """Returns the next tokens with their log-probabilities, without tokens that belong only to a stop string."""
        result = piece if isinstance(piece, Result) else piece.result
        self._answer_start = self._detokenizer.length if self._answer_start is None else self._answer_start
        count = len(piece.token_ids)
        if self._tokenizer is not None and result is not None and piece.logprobs is not None:
            count = self._count_before(self._answer_start + len(result.text), piece.token_ids)
        logprobs = None if piece.logprobs is None else piece.logprobs[:count]
        return piece.token_ids[:count], logprobs, None if piece.top_logprobs is None else piece.top_logprobs[:count]

    def _count_before(self, end: int, token_ids: Sequence[int]) -> int:
        """Returns the number of tokens before the first one whose text starts at `end` or later."""
        if self._last_text_start >= end:
            return 0
        detokenizer = copy.copy(self._detokenizer)
        for index, token_id in enumerate(token_ids):
            start = detokenizer.length
            if detokenizer.add(token_id) and start >= end:
                return index
        return len(token_ids)

    def chat_format(
        self, token_ids: Sequence[int], logprobs: Sequence[float] | None, top: Top | None = None
    ) -> dict[str, Any] | None:
        """Returns the next tokens in the chat format; None if log-probabilities were not requested.

        `bytes` are the bytes that a token adds to the text: empty for a special token, null for part of a character.
        """
        if logprobs is None:
            return None
        content = []
        for index, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
            alternatives = [self._alternative(*pair) for pair in top[index] or ()] if top else []
            text, added, _ = self._advance(token_id)
            content.append(
                {"token": text, "logprob": logprob, "bytes": _bytes(text, added), "top_logprobs": alternatives}
            )
        return {"content": content, "refusal": None}

    def completion_format(
        self, token_ids: Sequence[int], logprobs: Sequence[float | None] | None, top: Top | None = None
    ) -> dict[str, Any] | None:
        """Returns the next tokens in the completions format; None if log-probabilities were not requested."""
        if logprobs is None:
            return None
        tops: list[dict[str, float] | None] = []
        tokens = []
        for index, token_id in enumerate(token_ids):
            if top:
                alternatives = [self._alternative(*pair) for pair in top[index] or ()]
                by_token = {entry["token"]: entry["logprob"] for entry in alternatives}
                token, logprob = self._alternative(token_id, 0.0)["token"], logprobs[index]
                tops.append(by_token | ({} if token in by_token or logprob is None else {token: logprob}) or None)
            tokens.append(self._advance(token_id))
        return {
            "tokens": [text for text, _, _ in tokens],
            "token_logprobs": list(logprobs),
            "top_logprobs": tops or None,
            "text_offset": [offset for _, _, offset in tokens],
        }

    def _alternative(self, token_id: int, logprob: float) -> dict[str, Any]:
        """Returns the entry of a token that could have come next."""
        added = "" if self._tokenizer is None else self._detokenizer.would_add(token_id)
        text = self._display_text(token_id, added)
        return {"token": text, "logprob": logprob, "bytes": _bytes(text, added)}

    def _advance(self, token_id: int) -> tuple[str, str, int]:
        """Returns the displayed text of the next token, the text that it adds, and its offset."""
        if self._tokenizer is None:
            return "", "", 0
        offset, added = self._detokenizer.length, self._detokenizer.add(token_id)
        self._last_text_start = offset if added else self._last_text_start
        return self._display_text(token_id, added), added, offset

    def _display_text(self, token_id: int, added: str) -> str:
        if added or self._tokenizer is None:
            return added
        return self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False)


def _bytes(text: str, added: str) -> list[int] | None:
    return None if not added and INCOMPLETE in text else list(added.encode())
