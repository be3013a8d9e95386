"""Host-side state of one request in a batch, and its result."""

import collections
import dataclasses
import math
from typing import Any

from eagle_jax.requests.request import NO_OUTPUT, PartialOutput, Request
from eagle_jax.requests.results import CANCELLED, FAILED, BudgetUse, Result, Stats, Step, sum_spent
from eagle_jax.scheduling.growing_output import GrowingOutput
from eagle_jax.scheduling.new_columns import Columns
from eagle_jax.text.detokenize import AnswerText


@dataclasses.dataclass
class Row:
    """A request in a batch, as of the last poll.

    Attributes:
        request: the request.
        output: its answer so far.
        polled: the columns that `output` is made from.
        done: whether the answer is complete.
        stopped: whether a stop token ended it.
        failed: whether it ended because the target's logits were NaN.
        text: text of its answer, and the stop string that ended it; None before either was asked for.
        compile_seconds: spent on compiling while it waited.
        prefill_seconds: spent on its prompt; rows that are prefilled together share it.
        decode_seconds: spent on steps since then, whether for this row alone or for others as well.
        first_token_seconds: from submission to its first token, compiling not counted; nan before.
        cached_tokens: tokens of its prompt that came from the prefix cache.
        spent: time of its steps, by the size of the trees.
    """

    request: Request
    output: PartialOutput = NO_OUTPUT
    done: bool = False
    stopped: bool = False
    failed: bool = False
    text: AnswerText | None = None
    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = math.nan
    cached_tokens: int = 0
    spent: list[BudgetUse] = dataclasses.field(default_factory=list)
    polled: GrowingOutput = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        options = self.request.options
        self.polled = GrowingOutput(logprobs=options.logprobs, top_logprobs=options.top_logprobs)

    @property
    def num_seen(self) -> int:
        """Tokens of prompt and answer that the host has."""
        return len(self.request.prompt) + len(self.polled)

    def extend(self, new: Columns, tree: Step | None) -> None:
        """Appends what came with a poll; `tree` is as in `GrowingOutput.extend`."""
        self.polled.extend(new, tree)
        self.output = self.polled.output(self.decode_seconds)

    def spend(self, nodes: int, since: int, seconds: float) -> None:
        """Takes down what steps with trees of `nodes` nodes took, which committed the tokens from number `since` on."""
        committed = [step for step in self.output.committed_at_step[since:] if step > 0]  # 0: prefill
        self.spent = sum_spent([*self.spent, BudgetUse(nodes, len(set(committed)), len(committed), seconds)])

    def read(self, tokenizer: Any) -> AnswerText:
        """Returns the text of its answer so far."""
        if self.text is None:
            self.text = AnswerText(tokenizer, self.request.prompt, self.request.options.stop)
        self.text.read(self.output.token_ids)
        return self.text


def result_of(row: Row, tokenizer: Any, depth: int) -> Result:
    """Returns the answer of a row, or as much as there is, with draft trees `depth` deep."""
    output, text = row.output, row.read(tokenizer)
    return Result(
        text=text.text,
        token_ids=list(output.token_ids),
        finish_reason=FAILED if row.failed else "stop" if row.stopped or text.stop_hit is not None else "length",
        logprobs=None if output.logprobs is None else list(output.logprobs),
        top_logprobs=None if output.top_logprobs is None else list(output.top_logprobs),
        prompt_tokens=len(row.request.prompt),
        stats=_stats(row, depth),
    )


def cancelled_result(request: Request, tokenizer: Any, depth: int) -> Result:
    """Returns the answer of a request that was cancelled before it was begun."""
    return dataclasses.replace(result_of(Row(request), tokenizer, depth), finish_reason=CANCELLED)


def _stats(row: Row, depth: int) -> Stats:
    """Statistics from the step that committed each token (0: prefill)."""
    committed_at_step, seconds = row.output.committed_at_step, row.decode_seconds
    tokens, per_step = len(committed_at_step), collections.Counter(committed_at_step)
    lengths = [per_step[step] for step in sorted(per_step) if step > 0]
    steps, nan = len(lengths), float("nan")
    return Stats(
        steps=steps,
        mean_accepted_length=sum(lengths) / steps if steps else nan,
        accepted_lengths=lengths,
        accepted_by_depth=[
            sum(length > deep for length in lengths) / steps if steps else nan for deep in range(1, depth + 1)
        ],
        structured_seconds=0.0 if row.request.structured is None else row.request.structured.seconds,
        compile_seconds=row.compile_seconds,
        prefill_seconds=row.prefill_seconds,
        decode_seconds=seconds,
        first_token_seconds=row.first_token_seconds,
        tokens_per_second=(tokens - 1) / seconds if tokens > 1 and seconds else nan,
        cached_tokens=row.cached_tokens,
        spent=list(row.spent),
    )
