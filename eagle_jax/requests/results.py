"""The results of `generate` and `stream`."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

CANCELLED = "cancelled"  # `finish_reason` of an answer that was cancelled
FAILED = "error"  # of one that ended where the target's logits were NaN


@dataclasses.dataclass(frozen=True)
class BudgetUse:
    """The steps with trees of one size, and their time.

    Attributes:
        nodes: nodes of the tree, root included; 1 is plain decoding.
        steps: number of steps.
        tokens: tokens that the steps committed.
        seconds: time of the steps, which the rows of a batch share.
    """

    nodes: int
    steps: int
    tokens: int
    seconds: float


def sum_spent(parts: Iterable[BudgetUse]) -> list[BudgetUse]:
    """Sums the uses of budgets by size, the smallest trees first."""
    sums: dict[int, BudgetUse] = {}
    for one in parts:
        had = sums.get(one.nodes, BudgetUse(one.nodes, 0, 0, 0.0))
        steps, tokens, seconds = had.steps + one.steps, had.tokens + one.tokens, had.seconds + one.seconds
        sums[one.nodes] = BudgetUse(one.nodes, steps, tokens, seconds)
    return [sums[nodes] for nodes in sorted(sums)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """How an answer was made.

    Attributes:
        steps: number of steps after prefill.
        mean_accepted_length: tokens committed per step, the target's own (bonus) token included; 1.0 is plain
            decoding, nan if there was no step. It is 1 + the sum of `accepted_by_depth`.
        accepted_lengths: tokens that each step committed, in order; with the first token, which comes with the prompt,
            they sum to the answer's length (stop strings cut the answer, and the last step with it).
        accepted_by_depth: share of the steps that committed the drafted token at depth 1, 2, ...
        structured_seconds: spent on making the automaton of structured output; 0 if an earlier request's serves.
        compile_seconds: spent on compiling programs that this call was the first to need.
        prefill_seconds: from the prompt on the device to the first token. All answers of one batch share their times.
        first_token_seconds: from the request to the first token at hand: making tokens of the prompt, waiting for a
            place, and the prefill; nan for an answer without a token.
        decode_seconds: from the first token to the last poll of the answer; in a batch, time that others took too.
        tokens_per_second: tokens after the first over `decode_seconds`; nan for an answer of one token.
        cached_tokens: tokens of the prompt that were not read anew, since an earlier prompt began with the same ones.
        spent: steps, tokens and seconds by the size of the trees, which may change while an answer is made.
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
    """What the target thinks of a text that is there already: a value for each of its tokens.

    The first token, which nothing comes before, has None for each value.

    Attributes:
        token_ids: the tokens.
        logprobs: log softmax(logits)[token] of each, as `Result.logprobs` are.
        ranks: 1 for the likeliest token in its place, 2 for the next, ...
        top_logprobs: the likeliest tokens at each position, best first, with their log-probabilities; None
            unless asked for.
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
        token_ids: its tokens, a stop token included; they end with the token that completed a stop string.
        finish_reason: "stop" (a stop token or stop string), "length" (`max_new_tokens`, or the end of the context),
            "cancelled", or "error": the target's logits became NaN, so no token can be drawn.
        logprobs: log softmax(logits)[token] of each token, at any temperature; None unless asked for.
        prompt_tokens: tokens of the prompt.
        stats: how it was made.
        top_logprobs: the likeliest tokens at each position, best first, with their log-probabilities as above;
            None unless asked for.
        prompt_logprobs: the prompt's own, of a request to `Engine.submit_scores`, whose answer is empty; else None.
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
    """One draft tree and what became of it, node by node (n nodes).

    Attributes:
        tokens: token of each node; node 0 is the root.
        parents: index of each node's parent; -1 for the root.
        valid: whether the node is a guess at all.
        draws: the token that the target drew after each node.
        accepted: indices of the nodes that were committed, the root first; of siblings with the same token, which are
            one to the target, the first stands for all.
        scores: the drafter's log-probability of the path to each node, -inf for one that is no guess; None where the
            drafter has none.
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
        index: which of the prompts it belongs to.
        text: whole characters that are new and final.
        token_ids: tokens that are new; their text may come with a later chunk.
        result: the complete answer, with its last chunk; None before.
        accepted_lengths: tokens of these that each step committed, in order; the first token of an answer
            comes with the prompt.
        logprobs: log-probabilities of the new tokens; None unless asked for.
        seconds: from the first token to the poll that found these, as `Stats.decode_seconds` counts them.
        step: the draft tree of the step that the last of them came with, from an engine that records trees.
        top_logprobs: the likeliest tokens at the new positions; None unless asked for.
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
    """Replaces numbers that JSON lacks by None, in dicts and lists too: the speed of an answer of one token."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
