"""Adjustments of logits that requests ask for, as the arrays of a batch, on the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eagle_jax.decoding.processor import BANNED, NOT_ALLOWED, LogitsParams
from eagle_jax.requests.processing import LogitsOptions
from eagle_jax.structured.automaton_cache import automata_of
from eagle_jax.structured.table_sizes import TableSizes, Words, sizes_for, smallest_covering
from eagle_jax.structured.token_automaton import TokenAutomaton

LogitsRow = tuple[LogitsOptions, Words, TokenAutomaton | None]  # with the tokens of bad words and the form's automaton


def processor_of(rows: Sequence[LogitsRow], vocab_size: int, ready: Sequence[TableSizes] = ()) -> LogitsParams | None:
    """Returns the logits parameters of a batch, or None; `ready` are the table sizes of compiled programs."""
    if not any(options.changes_logits for options, _, _ in rows):
        return None
    sizes, (bias, bans) = sizes_of(rows, ready), static_rows(rows, vocab_size)
    automata = automata_of([automaton for _, _, automaton in rows], vocab_size, sizes)
    return LogitsParams(bias, bans, **columns_of(rows, sizes), automata=automata)


def sizes_of(rows: Sequence[LogitsRow], ready: Sequence[TableSizes]) -> TableSizes:
    """Returns the sizes of the tables of these rows."""
    return smallest_covering(ready, sizes_for([words for _, words, _ in rows], [automaton for _, _, automaton in rows]))


def static_rows(rows: Sequence[LogitsRow], vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns `LogitsParams.bias` and `static_bans` of these rows."""
    bias, bans = np.zeros((2, len(rows), vocab_size), np.float32)
    for row, (options, words, _) in enumerate(rows):
        if options.allowed_token_ids is not None:
            bans[row] = NOT_ALLOWED
            bans[row, list(options.allowed_token_ids)] = 0
        for id_, added in options.logit_bias:
            bias[row, id_] = added
        for word in words:
            if len(word) == 1:
                bans[row, word[0]] += BANNED
    return bias, bans


def columns_of(rows: Sequence[LogitsRow], sizes: TableSizes) -> dict[str, np.ndarray]:
    """Returns the fields of `LogitsParams` that do not grow with the vocabulary."""

    def column(name: str, dtype: Any) -> np.ndarray:
        return np.array([getattr(options, name) for options, _, _ in rows], dtype)

    return {
        "repetition": column("repetition_penalty", np.float32),
        "frequency": column("frequency_penalty", np.float32),
        "presence": column("presence_penalty", np.float32),
        "min_tokens": column("min_tokens", np.int32),
        "bad_words": _table([[word for word in words if len(word) > 1] for _, words, _ in rows], sizes),
    }


def _table(words: Sequence[Sequence[tuple[int, ...]]], sizes: TableSizes) -> np.ndarray:
    """Returns words of several tokens, `[b, w, l]`, each at the end of its line."""
    table = np.full((len(words), sizes.words, sizes.word_tokens), -1, np.int32)
    for row, listed in enumerate(words):
        for place, word in enumerate(listed):
            table[row, place, -len(word) :] = word
    return table
