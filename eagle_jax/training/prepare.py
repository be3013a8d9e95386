"""From conversation files to tokens, with an account of everything that was left out."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from eagle_jax.chat.conversations import Skipped, read
from eagle_jax.training.masks import Example, tokenize

SHOWN = 3  # places named for each reason


@dataclasses.dataclass(frozen=True)
class Dropped:
    """The number of conversations that were left out for one reason, and the places of the first few."""

    reason: str
    count: int
    places: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DataReport:
    """What data preparation kept and left out.

    Attributes:
        kept: conversations that are kept.
        cut: how many of these were cut to the maximum length.
        dropped: conversations left out, by reason, the most frequent first.
        tokens: tokens of the kept conversations.
        answer_tokens: tokens of these that the assistant produced, which are learnt.
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
    """Reads and tokenizes the files, the first `limit` conversations that can be used.

    Args:
        vocab_size: the target's; an id beyond it means a tokenizer of another model.
        length: longest conversation, in tokens; what becomes of longer ones is `over_long`.
        progress: called with the number of conversations kept so far.

    Raises:
        FileNotFoundError, ValueError: a file is missing or of no known form, nothing in the files can be used, or the
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
                example = _shortened(example, length, over_long)
                cut += 1
        except ValueError as error:
            places[str(error)].append(item.place)
            continue
        _check_ids(example, vocab_size, item.place)
        examples.append(example)
        if progress is not None:
            progress(len(examples))
    dropped = tuple(
        Dropped(reason, len(dropped_at), tuple(dropped_at[:SHOWN]))
        for reason, dropped_at in sorted(places.items(), key=lambda entry: -len(entry[1]))
    )
    if not examples:
        raise ValueError(_nothing(list(files), dropped))
    return examples, _account(examples, cut, dropped)


def joined(*reports: DataReport) -> DataReport:
    """Returns one report on several sets of files."""
    total = {name: sum(getattr(r, name) for r in reports) for name in ("kept", "cut", "tokens", "answer_tokens")}
    return DataReport(dropped=tuple(d for report in reports for d in report.dropped), **total)


def split(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Shuffles once and cuts: (training, held out), one held out at least. The same seed gives the same cut."""
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
    return _unfinished(example, tokenizer) if item.cut else example


def _unfinished(example: Example, tokenizer: Any) -> Example:
    """Removes the end that the template gives to an answer which had none."""
    words = example.answer & ~np.isin(example.tokens, list(tokenizer.all_special_ids))
    end = 1 + int(np.flatnonzero(words).max(initial=-1))
    return Example(example.tokens[:end], example.answer[:end])


def _shortened(example: Example, length: int, over_long: str) -> Example:
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


def _account(examples: Sequence[Example], cut: int, dropped: tuple[Dropped, ...]) -> DataReport:
    tokens = sum(len(example.tokens) for example in examples)
    answers = sum(int(example.answer.sum()) for example in examples)
    return DataReport(kept=len(examples), cut=cut, dropped=dropped, tokens=tokens, answer_tokens=answers)


def _nothing(files: Sequence[str], dropped: Sequence[Dropped]) -> str:
    where = ", ".join(files) or "no file"
    if not dropped:
        return f"{where}: there is no conversation in it"
    most_frequent, count = dropped[0], sum(reason.count for reason in dropped)
    return f"{where}: none of {count} conversations can be used; at {most_frequent.places[0]}: {most_frequent.reason}"
