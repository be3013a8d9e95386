"""Chunks of an answer in the page's form: the text of each token, which were guessed, and the tree."""

import functools
import math
from collections.abc import Sequence
from typing import Any

from eagle_jax.api import ChatAnswer, Chunk, Result, Step, decode, reasoning_format_for, settled

BEFORE = 16  # tokens that a new one is decoded with: more than any character is made of


class StepEvents:
    """Turns the chunks of one answer, one for each step, into the page's events.

    Example of an event, of a step that committed two guesses and the model's own token:

        {"tokens": [{"id": 311, "text": " a"}, {"id": 282, "text": " b"}, {"id": 13, "text": "."}],
         "drafted": 2, "seconds": 0.41, "tree": {"texts": [...], "parents": [...], "accepted": [...], "drawn": "."}}

    Where the model marks its reasoning, tokens that are no part of the answer itself have `"aside": true`, and an event
    has what it adds to both, as `content` and `reasoning_content`.

    Args:
        tokenizer: the model's.
        prompt: the tokens before the answer.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        reasoning = reasoning_format_for(tokenizer)
        self._answer = None if reasoning is None else ChatAnswer(tokenizer, "", prompt=prompt, reasoning=reasoning)

    def event(self, chunk: Chunk) -> dict[str, Any]:
        """Returns the event of one step.

        All but the last of its tokens were guessed; the last is the model's own, unless the answer ends there and a
        further guess was right.
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
        """Returns the tokens' parts of the answer and of its reasoning; marks those that add nothing to the answer."""
        if self._answer is None:
            return {}
        content, reasoning = self._answer.content, self._answer.reasoning_content
        for place, token in enumerate(tokens, start=1):
            deltas = self._answer.add([token["id"]], token["text"], is_last=is_last and place == len(tokens))
            if not any("content" in delta for delta in deltas):
                token["aside"] = True
        added = self._answer.content[len(content) :], self._answer.reasoning_content[len(reasoning) :]
        return dict(zip(("content", "reasoning_content"), added, strict=True))

    def _texts(self, token_ids: Sequence[int], text: str) -> list[str]:
        """Returns `text` in a piece for each token; a character belongs to the token that completes it."""
        before, self._ids = self._ids, [*self._ids, *token_ids][-BEFORE:]
        ids = [*before, *token_ids]
        lengths = [len(settled(decode(self._tokenizer, ids[:end]), ())) for end in range(len(before), len(ids) + 1)]
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
    """Returns a step's tree without nodes that are no guesses, and no drawn token if the answer ends with a guess."""
    valid_nodes = [node for node, valid in enumerate(step.valid) if valid]
    place = {node: number for number, node in enumerate(valid_nodes)} | {-1: -1}
    last = step.accepted[-1]
    ends = [node for node in valid_nodes if step.parents[node] == last and step.tokens[node] == step.draws[last]][:1]
    return {
        "texts": [_shown(tokenizer, step.tokens[node]) for node in valid_nodes],
        "parents": [place[step.parents[node]] for node in valid_nodes],
        "accepted": [place[node] for node in (*step.accepted, *ends)],
        "drawn": None if ends else _shown(tokenizer, step.draws[last]),
    }


@functools.lru_cache(maxsize=100_000)
def _shown(tokenizer: Any, token: int) -> str:
    """Returns a token by itself, with the space before a word, which tokenizers leave out of a text's first one."""
    once, twice = (decode(tokenizer, [token] * times) for times in (1, 2))
    return twice[len(once) :] or tokenizer.convert_ids_to_tokens(token) or f"{token}"
