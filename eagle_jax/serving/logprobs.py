"""Log-probabilities of tokens in the two forms that OpenAI has for them. Each token is shown by itself."""

from collections.abc import Sequence
from typing import Any


def in_chat(tokenizer: Any, token_ids: Sequence[int], logprobs: Sequence[float] | None) -> dict[str, Any] | None:
    """Chat's form; None where none were asked for."""
    if logprobs is None:
        return None
    content = [
        {"token": text, "logprob": logprob, "bytes": _bytes(text), "top_logprobs": []}
        for text, logprob in zip(_texts(tokenizer, token_ids), logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def in_completion(
    tokenizer: Any, token_ids: Sequence[int], logprobs: Sequence[float] | None, offset: int
) -> dict[str, Any] | None:
    """Completions' form; `offset` characters of the answer are before these tokens."""
    if logprobs is None:
        return None
    texts, offsets = _texts(tokenizer, token_ids), []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {"tokens": texts, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": offsets}


def _texts(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:
    if tokenizer is None:
        return [""] * len(token_ids)
    return [tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in token_ids]


def _bytes(text: str) -> list[int] | None:
    """A token's UTF-8; None if it is part of a character."""
    return None if "\ufffd" in text else list(text.encode())
