"""A stage for Ray Data that adds answers to rows."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset

from eagle_jax.api import Defaults, Engine, Line, Model, answer_lines
from eagle_jax.integrations.ray.arguments import check_load, engine_options

CALLS = 2  # concurrent calls of an actor: the next one begins before one ends, so the engine's batch stays full
MAX_QUEUE = 2**31  # rows are never refused: Ray limits how many are sent

_CALL = pa.struct({"name": pa.string(), "arguments": pa.string()})
_STATS = pa.struct({"steps": pa.int64(), "mean_accepted_length": pa.float64()})
# Explicit, since blocks with errors only, or with none, would be inferred as other types.
ANSWER = pa.struct(
    {
        "text": pa.string(),
        "tool_calls": pa.list_(pa.struct({"id": pa.string(), "type": pa.string(), "function": _CALL})),
        "token_ids": pa.list_(pa.int64()),
        "finish_reason": pa.string(),
        "usage": pa.struct({"prompt_tokens": pa.int64(), "completion_tokens": pa.int64()}),
        "seed": pa.int64(),
        "stats": _STATS,
        "response": pa.string(),
        "error": pa.string(),
    }
)


def answer(
    rows: Dataset,
    load: Callable[[], Model],
    *,
    defaults: Defaults = Defaults(),
    engine: Mapping[str, Any] | None = None,
    actors: int | tuple[int, int] = 1,
    batch_size: int = 64,
    line: str | None = None,
    column: str = "answer",
    token_ids: bool = False,
    ignore_unknown: bool = False,
    **resources: Any,
) -> Dataset:
    """Adds a column of answers to a dataset, from actors that hold an engine each.

    A row has the fields of a batch job's row as columns: `prompt`, `messages` or `prompt_ids`, and its own options.
    Null fields are ignored, inside messages too, since a table has each field in all rows. The answer is a struct with
    `text`, `finish_reason`, `usage`, `seed`, `stats`, and optionally `tool_calls`, `token_ids` or `response` (JSON, for
    rows in OpenAI's format); or with an `error` alone, in one sentence, which does not stop the job.

    A row's answer is that of `generate` for its `seed`, on any actor and after any retry. A row without a seed gets one
    from `defaults.seed` and from its `id`, or from its whole content; whole numbers from 0 as ids give the seeds of a
    batch job's rows.

    Args:
        rows: the dataset. Ray decides the order of the answers.
        load: returns the model, called in the actor: `functools.partial(eagle_jax.load, "smollm2-135m-instruct")`.
        defaults: options for rows without their own.
        engine: arguments of `Engine`, such as `rows`, `max_tokens`, `drafter`.
        actors: number of actors, or the minimum and maximum of an autoscaling pool.
        batch_size: rows of a call; when an actor dies, a few calls are repeated.
        line: the column that has each row as a line of a batch job's file, such as `text` of `ray.data.read_text`; for
            rows of several kinds, which have no common columns.
        column: name of the column of answers.
        token_ids: whether answers include their token ids.
        ignore_unknown: whether unknown columns are ignored instead of being errors.
        resources: of an actor, as in `Dataset.map_batches`: `num_cpus`, `num_gpus`, `memory`, `resources`,
            `accelerator_type`, `label_selector`, `runtime_env`.

    Raises:
        TypeError: `load` is not callable, or `engine` has an unknown option.
        ValueError: `actors` or `batch_size` is below 1; in the actors, wrapped by Ray: the dataset has no column
            `line`, or has a column `column` already.
    """
    check_load(load)
    options = engine_options(engine)
    sizes = dict(size=actors) if isinstance(actors, int) else dict(min_size=actors[0], max_size=actors[1])
    how = dict(defaults=defaults, token_ids=token_ids, ignore_unknown=ignore_unknown)
    return rows.map_batches(
        _Answering,
        fn_constructor_kwargs=dict(load=load, engine=options, line=line, column=column, how=how),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(**sizes, max_concurrent_calls_per_actor=CALLS),
        udf_modifying_row_count=False,
        **resources,
    )


class _Answering:
    """The actor: an engine that answers several batches concurrently, on one event loop."""

    def __init__(
        self,
        load: Callable[[], Model],
        engine: Mapping[str, Any],
        line: str | None,
        column: str,
        how: Mapping[str, Any],
    ):
        self._line, self._column, self._how = line, column, how
        self._engine = Engine(load(), **{"max_queue": MAX_QUEUE, **engine})

    async def __call__(self, table: pa.Table) -> pa.Table:
        names = table.column_names
        if self._column in names:
            raise ValueError(f"the rows already have a column {self._column!r}; name another column for the answers")
        if self._line is not None and self._line not in names:
            raise ValueError(f"the rows have no column {self._line!r} with lines; expected one of {', '.join(names)}")
        lines = [line_of(row, self._line) for row in table.to_pylist()]
        records = await answer_lines(self._engine, lines, **self._how)
        return table.append_column(self._column, pa.array(map(answer_of, records), type=ANSWER))


def line_of(row: Mapping[str, Any], column: str | None) -> Line:
    """Returns a row as a line of a batch job, with a number that depends on the row alone."""
    if column is None:
        content = json.dumps(_without_nulls(row), default=_json).encode()
    else:
        content = (row[column] or "").encode(errors="surrogatepass")
    return Line(_number(content), "", content)


def answer_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer for a record of a batch job's output."""
    if "response" not in record:
        return {name: value for name, value in record.items() if name != "id"}
    error = record["error"]
    return {"response": json.dumps(record["response"]), "error": error and error["message"]}


def _number(content: bytes) -> int:
    """Returns the row's `id` if it is a whole number, else a hash of the id, or of the row if it has none."""
    try:
        row = json.loads(content)
        id_ = row.get("custom_id" if "body" in row else "id")
    except (ValueError, AttributeError, RecursionError):  # reported when the row is read
        id_ = None
    if type(id_) is int and id_ >= 0:
        return id_
    named = content if id_ is None else json.dumps(id_).encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:8])


def _without_nulls(value: Any) -> Any:
    """Returns the value without null entries: a table has each field in all rows."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


def _json(value: Any) -> Any:
    """Converts arrays to lists, and other values to an object that no field of a row accepts."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else {type(value).__name__: repr(value)}
