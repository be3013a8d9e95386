"""Reads and tokenizes conversation files, with a report on skipped conversations."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from eagle_jax.chat.conversations import Skipped, read
from eagle_jax.training.masks import Example, tokenize

MAX_PLACES = 3  # reported per reason


@dataclasses.dataclass(frozen=True)
class Dropped:
    """Number of conversations that were dropped for one reason, and the places of the first few."""

    reason: str
    count: int
    places: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DataReport:
    """Report on data preparation.

    Attributes:
        kept: number of kept conversations.
        cut: number of kept conversations that were truncated.
        dropped: dropped conversations by reason, the most frequent reason first.
        tokens: number of tokens of the kept conversations.
        answer_tokens: number of tokens among them that the assistant produced, which are trained.
    """

    kept: int
    cut: int
    dropped: tuple[Dropped, ...]
    tokens: int
    answer_tokens: int

    @property
    def share(self) -> float:
        """Share of the tokens that the assistant produced."""
        return self.answer_tokens / max(self.tokens, 1)


def prepare(
    files: Iterable[str],
    tokenizer: Any,
    *,
    vocab_size: int,
    length: int,
    over_long: Literal["drop", "cut"],
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Example], DataReport]:
    """Reads and tokenizes the first `limit` usable conversations of the files.

    Args:
        vocab_size: size of the target's vocabulary.
        length: maximum number of tokens; longer conversations are dropped or cut by `over_long`.
        progress: called with the number of conversations kept so far.

    Raises:
        FileNotFoundError, ValueError: a file is missing or has an unknown format, no conversation is usable, or the
            tokenizer does not match the target.
    """
    examples: list[Example] = []
    places: dict[str, list[str]] = collections.defaultdict(list)
    cut = 0
    for item in (item for file in files for item in read(file)):
        if len(examples) == limit:
            break
        try:
            example = _example(item, tokenizer)
            if len(example.tokens) > length:
                example = _shorten(example, length, over_long)
                cut += 1
        except ValueError as error:
            places[str(error)].append(item.place)
            continue
        _check_ids(example, vocab_size, item.place)
        examples.append(example)
        if progress is not None:
            progress(len(examples))
    dropped = tuple(
        Dropped(reason, len(dropped_at), tuple(dropped_at[:MAX_PLACES]))
        for reason, dropped_at in sorted(places.items(), key=lambda entry: -len(entry[1]))
    )
    if not examples:
        raise ValueError(_no_examples_message(list(files), dropped))
    return examples, _report(examples, cut, dropped)


def merge_reports(*reports: DataReport) -> DataReport:
    """Merges reports on several sets of files."""
    total = {name: sum(getattr(r, name) for r in reports) for name in ("kept", "cut", "tokens", "answer_tokens")}
    return DataReport(dropped=tuple(d for report in reports for d in report.dropped), **total)


def split_held_out(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Splits shuffled conversations by the seed into training and held-out ones, with at least one held out."""
    held_out = max(1, round(share * len(examples)))
    if held_out >= len(examples):
        raise ValueError(
            f"{len(examples)} conversations are too few to hold {held_out} out; give more, or lower data.held_out_share"
        )
    order = np.random.default_rng(seed).permutation(len(examples))
    return [examples[i] for i in order[held_out:]], [examples[i] for i in order[:held_out]]


def _example(item: Any, tokenizer: Any) -> Example:
    if isinstance(item, Skipped):
        raise ValueError(item.reason)
    example = tokenize(item.messages, tokenizer)
    return _without_template_end(example, tokenizer) if item.cut else example


def _without_template_end(example: Example, tokenizer: Any) -> Example:
    """Removes the end that the template adds to a truncated answer."""
    words = example.answer & ~np.isin(example.tokens, list(tokenizer.all_special_ids))
    end = 1 + int(np.flatnonzero(words).max(initial=-1))
    return Example(example.tokens[:end], example.answer[:end])


def _shorten(example: Example, length: int, over_long: str) -> Example:
    shorter = Example(example.tokens[:length], example.answer[:length])
    if over_long == "drop":
        raise ValueError(f"longer than {length} tokens")
    if not shorter.answer.any():
        raise ValueError(f"no answer within the first {length} tokens")
    return shorter


def _check_ids(example: Example, vocab_size: int, place: str) -> None:
    if example.tokens.max(initial=0) >= vocab_size:
        raise ValueError(
            f"{place} holds token id {example.tokens.max()}, but the target's vocabulary is 0 to {vocab_size - 1}: "
            "the tokenizer is another model's"
        )


def _report(examples: Sequence[Example], cut: int, dropped: tuple[Dropped, ...]) -> DataReport:
    tokens = sum(len(example.tokens) for example in examples)
    answers = sum(int(example.answer.sum()) for example in examples)
    return DataReport(kept=len(examples), cut=cut, dropped=dropped, tokens=tokens, answer_tokens=answers)


def _no_examples_message(files: Sequence[str], dropped: Sequence[Dropped]) -> str:
    where = ", ".join(files) or "no file"
    if not dropped:
        return f"{where}: there are no conversations"
    most_frequent, count = dropped[0], sum(reason.count for reason in dropped)
    return f"{where}: none of {count} conversations can be used; at {most_frequent.places[0]}: {most_frequent.reason}"
