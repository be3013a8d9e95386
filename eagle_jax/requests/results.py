"""The results of `generate` and `stream`."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

CANCELLED = "cancelled"  # `finish_reason` of an answer that was cancelled
FAILED = "error"  # `finish_reason` of an answer that ended because the target's logits were NaN


@dataclasses.dataclass(frozen=True)
class BudgetUse:
    """The steps with trees of one size, and their time.

    Attributes:
        nodes: nodes of the tree, root included; 1 is plain decoding.
        steps: number of steps.
        tokens: tokens that the steps committed.
        seconds: time of the steps, divided among the rows of a batch.
    """

    nodes: int
    steps: int
    tokens: int
    seconds: float


def sum_spent(parts: Iterable[BudgetUse]) -> list[BudgetUse]:
    """Sums budget uses by tree size, the smallest trees first."""
    sums: dict[int, BudgetUse] = {}
    for part in parts:
        total = sums.get(part.nodes, BudgetUse(part.nodes, 0, 0, 0.0))
        steps, tokens, seconds = total.steps + part.steps, total.tokens + part.tokens, total.seconds + part.seconds
        sums[part.nodes] = BudgetUse(part.nodes, steps, tokens, seconds)
    return [sums[nodes] for nodes in sorted(sums)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """Statistics of an answer.

    Attributes:
        steps: number of steps after prefill.
        mean_accepted_length: tokens committed per step, the target's own (bonus) token included; 1.0 is plain
            decoding, nan if there was no step. It is 1 + the sum of `accepted_by_depth`.
        accepted_lengths: tokens that each step committed, in order; with the first token, which prefill draws, they sum
            to the answer's length (a stop string truncates the last step).
        accepted_by_depth: share of the steps that committed the drafted token at depth 1, 2, ...
        structured_seconds: time to compile the automaton of structured output; 0 if it was cached.
        compile_seconds: time to compile programs that this call needed first.
        prefill_seconds: time from the prompt on the device to the first token, the same for a whole batch.
        first_token_seconds: time from submission to the first token: tokenization, queue and prefill; nan for an answer
            without a token.
        decode_seconds: time from the first token to the last poll of the answer, shared by all rows of a batch.
        tokens_per_second: tokens after the first over `decode_seconds`; nan for an answer of one token.
        cached_tokens: tokens of the prompt that came from the prefix cache.
        spent: steps, tokens and seconds by tree size, which may change during an answer.
    """

    steps: int
    mean_accepted_length: float
    accepted_lengths: list[int]
    accepted_by_depth: list[float]
    structured_seconds: float
    compile_seconds: float
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    tokens_per_second: float
    cached_tokens: int = 0
    spent: list[BudgetUse] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of a given text under the target. All values of the first token are None.

    Attributes:
        token_ids: tokens of the text.
        logprobs: log softmax(logits)[token] of each token, as in `Result.logprobs`.
        ranks: rank of each token among all tokens at its position; 1 is the most likely.
        top_logprobs: the top tokens at each position, best first, with their log-probabilities; None unless requested.
    """

    token_ids: list[int]
    logprobs: list[float | None]
    ranks: list[int | None]
    top_logprobs: list[list[tuple[int, float]] | None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One answer.

    Attributes:
        text: the answer without special tokens, cut before a stop string.
        token_ids: generated tokens, up to a stop token or the token that completed a stop string.
        finish_reason: "stop" (a stop token or stop string), "length" (`max_new_tokens`, or the end of the context),
            "cancelled", or "error": the target's logits became NaN, so no token can be drawn.
        logprobs: log softmax(logits)[token] of each token, without temperature; None unless requested.
        prompt_tokens: number of tokens of the prompt.
        stats: statistics.
        top_logprobs: the top tokens at each position, best first, with their log-probabilities; None unless requested.
        prompt_logprobs: log-probabilities of the prompt, for `Engine.submit_scores`, where the answer is empty; else
            None.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: list[float] | None
    prompt_tokens: int
    stats: Stats
    top_logprobs: list[list[tuple[int, float]]] | None = None
    prompt_logprobs: PromptLogprobs | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """One draft tree and the result of its verification.

    Attributes:
        tokens: token of each node; node 0 is the root.
        parents: index of each node's parent; -1 for the root.
        valid: whether each node is a drafted token, not padding.
        draws: the token that the target drew after each node.
        accepted: indices of the committed nodes, the root first; the first of siblings with the same token counts.
        scores: the drafter's log-probability of the path to each node, -inf for padding; None if the drafter has none.
    """

    tokens: list[int]
    parents: list[int]
    valid: list[bool]
    draws: list[int]
    accepted: list[int]
    scores: list[float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a streamed answer.

    Attributes:
        index: index of the prompt.
        text: new complete characters, which are final.
        token_ids: new tokens; their text may follow in a later chunk.
        result: the complete answer, in its last chunk; None before.
        accepted_lengths: number of the new tokens that each step committed, in order, without the token that prefill
            draws.
        logprobs: log-probabilities of the new tokens; None unless requested.
        seconds: time from the first token to the poll that found these, as in `Stats.decode_seconds`.
        step: draft tree of the step that committed the last of these tokens, if the engine records trees.
        top_logprobs: the top tokens at the new positions; None unless requested.
    """

    index: int
    text: str
    token_ids: list[int]
    result: Result | None
    accepted_lengths: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] | None = None
    seconds: float = 0.0
    step: Step | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None


def without_nan(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON lacks, by None, also inside dicts and lists."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
