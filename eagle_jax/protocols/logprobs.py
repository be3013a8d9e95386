"""Log-probabilities of tokens in the two forms that OpenAI has for them."""

import copy
from collections.abc import Sequence
from typing import Any

from eagle_jax.requests.results import Chunk, Result
from eagle_jax.text.detokenize import INCOMPLETE, IncrementalDetokenizer

# In the place of each token the likeliest ones, with their log-probabilities; None for a prompt's first one.
Top = Sequence[Sequence[tuple[int, float]] | None]


class TokenLogprobs:
    """The tokens of one answer to a prompt as its responses show them, piece by piece."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()):
        self._tokenizer, self._detokenizer = tokenizer, IncrementalDetokenizer(tokenizer, prompt)
        self._last = -1  # where the last token that added to the text began
        self._answer: int | None = None  # where the answer's text begins

    def in_text(self, piece: Result | Chunk) -> tuple[list[int], list[float] | None, Top | None]:
        """Returns the next tokens of the answer, with what is known of each; without those of a stop string alone."""
        result = piece if isinstance(piece, Result) else piece.result
        self._answer = self._detokenizer.length if self._answer is None else self._answer
        count = len(piece.token_ids)
        if self._tokenizer is not None and result is not None and piece.logprobs is not None:
            count = self._count_before(self._answer + len(result.text), piece.token_ids)
        logprobs = None if piece.logprobs is None else piece.logprobs[:count]
        return piece.token_ids[:count], logprobs, None if piece.top_logprobs is None else piece.top_logprobs[:count]

    def _count_before(self, end: int, token_ids: Sequence[int]) -> int:
        """Returns how many of the next tokens come before the first one whose text begins at `end` or later."""
        if self._last >= end:
            return 0
        ahead = copy.copy(self._detokenizer)
        for place, token_id in enumerate(token_ids):
            begin = ahead.length
            if ahead.add(token_id) and begin >= end:
                return place
        return len(token_ids)

    def in_chat(
        self, token_ids: Sequence[int], logprobs: Sequence[float] | None, top: Top | None = None
    ) -> dict[str, Any] | None:
        """Returns the next tokens in chat's form; None where none were asked for.

        `bytes` are those of what a token adds to the text: none of a special token, null of a part of a character.
        """
        if logprobs is None:
            return None
        content = []
        for place, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
            others = [self._in_place(*pair) for pair in top[place] or ()] if top else []
            shown, added, _ = self._next(token_id)
            content.append({"token": shown, "logprob": logprob, "bytes": _bytes(shown, added), "top_logprobs": others})
        return {"content": content, "refusal": None}

    def in_completion(
        self, token_ids: Sequence[int], logprobs: Sequence[float | None] | None, top: Top | None = None
    ) -> dict[str, Any] | None:
        """Returns the next tokens in completions' form, each with its place in the text."""
        if logprobs is None:
            return None
        tops: list[dict[str, float] | None] = []
        tokens = []
        for place, token_id in enumerate(token_ids):
            if top:
                entries = [self._in_place(*pair) for pair in top[place] or ()]
                by_token = {entry["token"]: entry["logprob"] for entry in entries}
                token, logprob = self._in_place(token_id, 0.0)["token"], logprobs[place]
                tops.append(by_token | ({} if token in by_token or logprob is None else {token: logprob}) or None)
            tokens.append(self._next(token_id))
        return {
            "tokens": [shown for shown, _, _ in tokens],
            "token_logprobs": list(logprobs),
            "top_logprobs": tops or None,
            "text_offset": [offset for _, _, offset in tokens],
        }

    def _in_place(self, token_id: int, logprob: float) -> dict[str, Any]:
        """Returns a token that could have come next, as it would have been shown."""
        added = "" if self._tokenizer is None else self._detokenizer.would_add(token_id)
        shown = self._shown(token_id, added)
        return {"token": shown, "logprob": logprob, "bytes": _bytes(shown, added)}

    def _next(self, token_id: int) -> tuple[str, str, int]:
        """Returns a token as shown, what it adds to the text, and where. One that adds nothing is shown as it is."""
        if self._tokenizer is None:
            return "", "", 0
        offset, added = self._detokenizer.length, self._detokenizer.add(token_id)
        self._last = offset if added else self._last
        return self._shown(token_id, added), added, offset

    def _shown(self, token_id: int, added: str) -> str:
        if added or self._tokenizer is None:
            return added
        return self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False)


def _bytes(shown: str, added: str) -> list[int] | None:
    return None if not added and INCOMPLETE in shown else list(added.encode())
