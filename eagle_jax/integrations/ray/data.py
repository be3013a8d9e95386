"""A stage for Ray Data: rows in, the same rows with answers out."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset

from eagle_jax.api import Defaults, Engine, Line, Model, answer_lines
from eagle_jax.integrations.ray.arguments import check_load, engine_options

# A task that begins while another ends keeps the engine's batch full.
CALLS = 2
MAX_QUEUE = 2**31  # no row is turned away: how many are under way is decided by Ray

_CALL = pa.struct({"name": pa.string(), "arguments": pa.string()})
_STATS = pa.struct({"steps": pa.int64(), "mean_accepted_length": pa.float64()})
# Stated, since blocks without an error, or with nothing else, would have a type of their own.
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

    A row is one of a batch job, its fields are columns: `prompt`, `messages` or `prompt_ids`, and options of its own;
    one that is null is left out, also inside messages, since tables have a field in all rows or in none. The answer is
    a structure with `text`, `finish_reason`, `usage`, `seed`, `stats`, and as the case may be `tool_calls`, `token_ids`
    or `response` (as JSON, to rows in OpenAI's form); or with an `error` alone, in one sentence, which stops nothing.

    A row's answer is `generate`'s for its `seed`, whichever actor gives it and however often: Ray starts an actor that
    died again, with the rows that it had. A row without a seed has one that follows from `defaults.seed` and from its
    `id`, or from all that it holds. With whole numbers from 0 as ids they are the seeds of a batch job's rows.

    Args:
        rows: in any order; the order of the answers is Ray's.
        load: makes the model, in the actor: `functools.partial(eagle_jax.load, "smollm2-135m-instruct")`.
        defaults: options of rows that do not state their own.
        engine: arguments of `Engine`, such as `rows`, `max_tokens`, `drafter`.
        actors: how many, or the least and the most, between which Ray chooses.
        batch_size: rows that an actor is given at a time; what it has to do again when it dies is a few of these.
        line: the column in which each row is as text, as a line of a batch job's file: `ray.data.read_text` makes
            `text`. Rows of several kinds have no other common form.
        column: the name of the answers' column.
        token_ids: whether answers have these too.
        ignore_unknown: whether columns that are no field of a row are ignored, instead of being errors.
        resources: of an actor, as in `Dataset.map_batches`: `num_cpus`, `num_gpus`, `memory`, `resources`,
            `accelerator_type`, `label_selector`, `runtime_env`.

    Raises:
        TypeError: `load` is no function, or `engine` has what no engine takes.
        ValueError: `actors` or `batch_size` is below 1; in the actors, as Ray wraps it, the dataset has no
            column `line`, or already one named `column`.
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
    """What an actor does; Ray lets it have several batches at a time, on one event loop."""

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
            raise ValueError(f"the rows already have a column {self._column!r}; name another for their answers")
        if self._line is not None and self._line not in names:
            raise ValueError(f"the rows have no column {self._line!r} with lines; expected one of {', '.join(names)}")
        lines = [line_of(row, self._line) for row in table.to_pylist()]
        records = await answer_lines(self._engine, lines, **self._how)
        return table.append_column(self._column, pa.array(map(answer_of, records), type=ANSWER))


def line_of(row: Mapping[str, Any], column: str | None) -> Line:
    """Returns a row as a line of a batch job, with a number that does not depend on where or when the row is read."""
    if column is None:
        content = json.dumps(_stated(row), default=_json).encode()
    else:
        content = (row[column] or "").encode(errors="surrogatepass")
    return Line(_number(content), "", content)


def answer_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of the answers' column for a record of a batch job's output."""
    if "response" not in record:
        return {name: value for name, value in record.items() if name != "id"}
    error = record["error"]
    return {"response": json.dumps(record["response"]), "error": error and error["message"]}


def _number(content: bytes) -> int:
    """Returns a whole number as `id`, or else one that is made of it, or of the whole row if it has none."""
    try:
        row = json.loads(content)
        id_ = row.get("custom_id" if "body" in row else "id")
    except (ValueError, AttributeError, RecursionError):  # such a row gets its error when it is read
        id_ = None
    if type(id_) is int and id_ >= 0:
        return id_
    named = content if id_ is None else json.dumps(id_).encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:8])


def _stated(value: Any) -> Any:
    """Returns the value without entries that are null: in a table a field that one row has is in all rows."""
    if isinstance(value, Mapping):
        return {name: _stated(one) for name, one in value.items() if one is not None}
    return [_stated(one) for one in value] if isinstance(value, list) else value


def _json(value: Any) -> Any:
    """Returns arrays as lists; what JSON has no form for as an object of its type, which no field of a row accepts."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else {type(value).__name__: repr(value)}
