"""The logits options of a batch's rows, on the devices; updated when rows change.

The tables are large, 20 MB and 8 bytes for each row and token of the vocabulary; most requests change none of them.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.processor import LogitsParams
from eagle_jax.loading.model import Model
from eagle_jax.requests.request import Request
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.batch_inputs import placed
from eagle_jax.scheduling.logits_arrays import LogitsRow, columns_of, processor_of, sizes_of, static_rows
from eagle_jax.sharding import Sharding, sharded
from eagle_jax.structured.automaton_cache import automata_of
from eagle_jax.structured.table_sizes import TableSizes
from eagle_jax.structured.token_automaton import TokenAutomaton

Static = tuple[Float[Array, "b v"], Float[Array, "b v"]]  # `LogitsParams.bias` and `static_bans`


class LogitsTables:
    """The `LogitsParams` of a batch, whose rows come and go."""

    def __init__(self, model: Model):
        self._model = model
        self._requests: list[Request] = []  # that `_current` is of
        self._current: LogitsParams | None = None
        # The last ones that there were, and what was asked of them:
        self._params: LogitsParams | None = None
        self._rows: Sequence[LogitsRow] = ()
        self._sizes: TableSizes | None = None
        self._automata: list[TokenAutomaton] = []  # in their places

    @property
    def sizes(self) -> TableSizes | None:
        """The sizes of the tables that `of` gave last; None if it gave none."""
        return None if self._current is None else self._sizes

    def of(self, requests: Sequence[Request], ready: Sequence[TableSizes]) -> LogitsParams | None:
        """Returns the logits parameters of these rows; None if no row has any. `ready` is as in `processor_of`."""
        if list(map(id, requests)) != list(map(id, self._requests)):
            rows = [(request.options, request.bad_words, request.automaton) for request in requests]
            changes = any(options.changes_logits for options, _, _ in rows)
            self._current = self._updated(rows, ready) if changes else None
            self._requests = list(requests)
        return self._current

    def warm_up(self) -> float:
        """Compiles what changes a row, where there are tables; the seconds that it took."""
        if self._params is None:
            return 0.0
        _, seconds = self._put_row((self._params.bias, self._params.static_bans), 0, self._rows[0])
        return seconds

    def _updated(self, rows: Sequence[LogitsRow], ready: Sequence[TableSizes]) -> LogitsParams:
        sizes, before = sizes_of(rows, ready), self._params
        if before is None or sizes != self._sizes or len(rows) != len(self._rows):
            host = processor_of(rows, self._vocab_size, ready)
            assert host is not None, "some row changes its logits"
            self._automata = list(
                {id(automaton): automaton for _, _, automaton in rows if automaton is not None}.values()
            )
            params = host
        else:
            bias, static_bans = self._static(before, rows)
            automata = self._automata_of(before, rows, sizes)
            params = LogitsParams(bias, static_bans, **columns_of(rows, sizes), automata=automata)
        self._params, self._rows, self._sizes = placed(self._model, params), rows, sizes
        return self._params

    def _static(self, params: LogitsParams, rows: Sequence[LogitsRow]) -> Static:
        static: Any = params.bias, params.static_bans
        for row, (old, new) in enumerate(zip(self._rows, rows, strict=True)):
            if _static_key(old) != _static_key(new):
                static, _ = self._put_row(static, row, new)
        return static

    def _put_row(self, static: Any, row: int, logits_row: LogitsRow) -> tuple[Any, float]:
        new = static_rows([logits_row], self._vocab_size)
        return programs.call(_compiled_put_row(), static, np.array(row, np.int32), new, sharding=self._model.sharding)

    def _automata_of(self, params: LogitsParams, rows: Sequence[LogitsRow], sizes: TableSizes) -> Any:
        """Returns the present tables if they contain all automata of these rows, else new tables."""
        automata = [automaton for _, _, automaton in rows]
        indices = {id(automaton): index for index, automaton in enumerate(self._automata)}
        if all(automaton is None or id(automaton) in indices for automaton in automata):
            assert params.automata is not None, "only programs leave them out"
            of_row = np.array([-1 if automaton is None else indices[id(automaton)] for automaton in automata], np.int32)
            return dataclasses.replace(params.automata, of_row=of_row)
        self._automata = list({id(automaton): automaton for automaton in automata if automaton is not None}.values())
        return automata_of(automata, self._vocab_size, sizes)

    @property
    def _vocab_size(self) -> int:
        return self._model.target.config.vocab_size


def _static_key(logits_row: LogitsRow) -> Any:
    """Returns a key that a row's bias and static bans follow from."""
    options, words, _ = logits_row
    return options.logit_bias, options.allowed_token_ids, [word for word in words if len(word) == 1]


def put_row(
    static: Static,
    row: Int[Array, ""],
    new: tuple[Float[Array, "1 v"], Float[Array, "1 v"]],
    *,
    sharding: Sharding | None,
) -> Static:
    """Returns both tables with row `row` replaced."""
    bias, bans = (
        jax.lax.dynamic_update_slice_in_dim(old, values, row, axis=0) for old, values in zip(static, new, strict=True)
    )
    return bias, bans


@functools.cache
def _compiled_put_row() -> Any:
    """Returns `put_row`, jitted once per process. Nothing is donated: arrays may lie in memory of the host's."""
    return jax.jit(sharded(put_row), static_argnames="sharding")
