"""Events of the page: the text of each new token, how many were drafted, and the draft tree."""

import functools
import math
from collections.abc import Sequence
from typing import Any

from eagle_jax.api import ChatAnswer, Chunk, Result, Step, decode, reasoning_format_for, settled

CONTEXT_TOKENS = 16  # tokens that new ones are decoded with, more than any character consists of


class StepEvents:
    """Turns the chunks of one answer, one per step, into events of the page.

    Example: the event of a step that committed two drafted tokens and the bonus token:

        {"tokens": [{"id": 311, "text": " a"}, {"id": 282, "text": " b"}, {"id": 13, "text": "."}],
         "drafted": 2, "seconds": 0.41, "tree": {"texts": [...], "parents": [...], "accepted": [...], "drawn": "."}}

    If the model marks its reasoning, tokens outside the answer itself have `"aside": true`, and an event has its
    additions to both texts as `content` and `reasoning_content`.

    Args:
        tokenizer: the model's tokenizer.
        prompt: the prompt's tokens.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        reasoning = reasoning_format_for(tokenizer)
        self._answer = None if reasoning is None else ChatAnswer(tokenizer, "", prompt=prompt, reasoning=reasoning)

    def event(self, chunk: Chunk) -> dict[str, Any]:
        """Returns the event of one step.

        All tokens but the last were drafted; the last is the bonus token, unless the answer ends with a drafted one.
        """
        texts = self._texts(chunk.token_ids, chunk.text)
        tokens = [{"id": token, "text": text} for token, text in zip(chunk.token_ids, texts, strict=True)]
        split = self._split(tokens, is_last=chunk.result is not None)
        fields = split | {
            "tokens": tokens,
            "drafted": max(sum(chunk.accepted_lengths) - 1, 0),
            "seconds": chunk.seconds,
        }
        if chunk.step is not None and chunk.step.accepted and sum(chunk.step.valid) > 1:
            fields["tree"] = tree = _tree(self._tokenizer, chunk.step)
            fields["drafted"] = len(tree["accepted"]) - 1
        return fields

    def _split(self, tokens: list[dict[str, Any]], is_last: bool) -> dict[str, Any]:
        """Returns what the tokens add to the answer and to its reasoning; marks tokens outside the answer."""
        if self._answer is None:
            return {}
        content, reasoning = self._answer.content, self._answer.reasoning_content
        for index, token in enumerate(tokens, start=1):
            deltas = self._answer.add([token["id"]], token["text"], is_last=is_last and index == len(tokens))
            if not any("content" in delta for delta in deltas):
                token["aside"] = True
        added = self._answer.content[len(content) :], self._answer.reasoning_content[len(reasoning) :]
        return dict(zip(("content", "reasoning_content"), added, strict=True))

    def _texts(self, token_ids: Sequence[int], text: str) -> list[str]:
        """Splits `text` into one piece per token; a character belongs to the token that completes it."""
        context, self._ids = self._ids, [*self._ids, *token_ids][-CONTEXT_TOKENS:]
        ids = [*context, *token_ids]
        lengths = [len(settled(decode(self._tokenizer, ids[:end]), ())) for end in range(len(context), len(ids) + 1)]
        pieces, start = [], 0
        for length in lengths[1:-1]:
            end = min(max(len(text) - (lengths[-1] - length), start), len(text))
            pieces.append(text[start:end])
            start = end
        return [*pieces, text[start:]] if token_ids else []


def summary(result: Result) -> dict[str, Any]:
    """Returns the statistics of a complete answer."""
    stats = result.stats
    return {
        "tokens": len(result.token_ids),
        "steps": stats.steps,
        "length": _number(stats.mean_accepted_length),
        "seconds": stats.decode_seconds,
        "tokens_per_second": _number(stats.tokens_per_second),
        "reason": result.finish_reason,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tree(tokenizer: Any, step: Step) -> dict[str, Any]:
    """Returns a step's tree without padding nodes, and without a drawn token if the answer ends with a drafted one."""
    valid_nodes = [node for node, valid in enumerate(step.valid) if valid]
    index_of = {node: number for number, node in enumerate(valid_nodes)} | {-1: -1}
    last = step.accepted[-1]
    final_guess = [
        node for node in valid_nodes if step.parents[node] == last and step.tokens[node] == step.draws[last]
    ][:1]
    return {
        "texts": [_token_text(tokenizer, step.tokens[node]) for node in valid_nodes],
        "parents": [index_of[step.parents[node]] for node in valid_nodes],
        "accepted": [index_of[node] for node in (*step.accepted, *final_guess)],
        "drawn": None if final_guess else _token_text(tokenizer, step.draws[last]),
    }


@functools.lru_cache(maxsize=100_000)
def _token_text(tokenizer: Any, token: int) -> str:
    """Returns the text of one token with its leading space, which tokenizers drop at the start of a text."""
    once, twice = (decode(tokenizer, [token] * times) for times in (1, 2))
    return twice[len(once) :] or tokenizer.convert_ids_to_tokens(token) or f"{token}"
