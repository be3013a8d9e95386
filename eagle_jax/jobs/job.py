"""Batch jobs: files of prompts in, one file of answers out; crash-safe, resumable, on several hosts."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_jax.checks import whole_number
from eagle_jax.drafters.base import Drafter
from eagle_jax.jobs import manifest, output_parts
from eagle_jax.jobs.journal import Journal
from eagle_jax.jobs.lines import lines_of, read_contents
from eagle_jax.jobs.pending_row import PendingRow, error_record, make_pending_row
from eagle_jax.jobs.processes import NullJournal, agree_on, agree_to_begin, writes_no_files
from eagle_jax.jobs.rows import Defaults, RejectedRow, Row, check_unique_ids, read
from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import drafter_for
from eagle_jax.ops.dispatch import environment_settings
from eagle_jax.requests.request import Request
from eagle_jax.scheduling import offline
from eagle_jax.scheduling.offline import Utilisation
from eagle_jax.scheduling.scheduler import Event
from eagle_jax.scheduling.sizes import default_batch_size, padded_batch_size

WINDOW = 256  # input rows in memory at a time, per row of the batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally:
    """Progress of this host.

    Attributes:
        rows: rows of the input that belong to this host.
        before: rows finished by earlier runs.
        failed_before: rows among them with an error.
        answered, failed: rows finished in this run.
        tokens: generated tokens in this run.
        utilisation: how full the batch was.
    """

    rows: int
    before: int
    answered: int = 0
    failed: int = 0
    tokens: int = 0
    failed_before: int = 0
    utilisation: Utilisation = dataclasses.field(default_factory=Utilisation)

    @property
    def done(self) -> int:
        return self.before + self.answered + self.failed


class Job:
    """A batch job, new or continued with the same input and options.

    Every row is answered as it would be alone, so the output does not depend on interruptions or the number of hosts
    (in float32; in bfloat16 up to near-ties of the logits). Each finished row is appended to this host's part at once;
    complete parts are merged into the output, in the order of the input.

    Args:
        inputs: files of JSON lines; rows are numbered consecutively across files.
        output: output file; its parts and its manifest are in the same folder.
        defaults: options of rows that do not set their own.
        made_with: JSON values by name of what else the answers depend on, such as the model and the drafter.
        token_ids: whether to write token ids too.
        ignore_unknown: whether to ignore unknown fields of rows.
        host, hosts: this host answers every `hosts`-th row, starting with row `host`.
        one_model: whether all processes of `jax.distributed` share one model and the same rows; process 0 writes.

    Attributes:
        complete: whether the output is complete.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: there are no rows, two rows have the same id, the output has another origin, or another process
            writes this host's part.

    Example:
        >>> import eagle_jax
        >>> with eagle_jax.api.Job(["prompts.jsonl"], "answers.jsonl") as job:
        ...     rows = job.run(eagle_jax.load()).answered
        ...     missing = job.merge()
        >>> missing
        []
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        output: str | Path,
        *,
        defaults: Defaults = Defaults(),
        made_with: Mapping[str, Any] | None = None,
        token_ids: bool = False,
        ignore_unknown: bool = False,
        host: int = 0,
        hosts: int = 1,
        one_model: bool = False,
    ):
        self.inputs, self.output = [Path(path) for path in inputs], Path(output)
        self.defaults, self.token_ids, self.one_model = defaults, token_ids, one_model
        self.ignore_unknown = ignore_unknown
        self.hosts = whole_number("hosts", hosts, 1)
        self.host = whole_number("host", host, 0)
        if self.host >= self.hosts:
            raise ValueError(f"host {host} of {hosts}; expected a number from 0 to {hosts - 1}")
        if self.output.resolve() in [path.resolve() for path in self.inputs]:
            raise ValueError(f"{self.output} is both input and output; name another output")
        contents = read_contents(self.inputs)
        check_unique_ids(self.inputs)
        self.rows = contents.rows
        settings = {
            "input": [path.name for path in self.inputs],
            "sha256": contents.digest,
            "rows": self.rows,
            "hosts": self.hosts,
            **json.loads(json.dumps(defaults.values)),  # tuples become lists, as when they are read again
            "token_ids": token_ids,
            **({"ignore_unknown": True} if ignore_unknown else {}),
            **environment_settings(),
            **(made_with or {}),
        }

        self._journal: Journal | NullJournal = NullJournal()
        self._is_new = False

        def begin() -> bool:
            self._is_new = self.hosts == 1 and not manifest.manifest_path(self.output).exists()
            complete = manifest.begin(self.output, settings)
            if complete:
                output_parts.remove_parts(self.output, self.hosts)
            else:
                self._journal = Journal(output_parts.part_path(self.output, self.host, self.hosts))
            return complete

        try:
            self.complete = agree_to_begin(begin, contents.digest) if one_model else begin()
        except ValueError:  # raised if any process fails
            self._journal.close()
            raise

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, error: object = None, *_: object) -> None:
        self._journal.close()
        if error is not None and self._is_new and not self._journal.done:  # so that other options can be used next time
            manifest.manifest_path(self.output).unlink(missing_ok=True)
            output_parts.remove_parts(self.output, self.hosts)

    def run(
        self,
        model: Model,
        *,
        drafter: str | Drafter = "auto",
        tree: Any = "auto",
        batch_size: int | None = None,
        progress: Callable[[Tally], None] | None = None,
    ) -> Tally:
        """Answers the remaining rows of this host; an invalid row gets an error record.

        Args:
            model: from `load`.
            drafter, tree, batch_size: as in `generate`.
            progress: called after every row.
        """
        own_rows = output_parts.rows_of_host(self.rows, self.host, self.hosts)
        if self.complete:
            return Tally(rows=len(own_rows), before=len(own_rows))
        rows = default_batch_size(model) if batch_size is None else whole_number("batch_size", batch_size, 1)
        # One tree for the whole job, so that statistics do not depend on the size of the last batch.
        chosen = drafter_for(model, drafter, tree, padded_batch_size(model, rows))
        done = agree_on(self._journal.done, self.rows) if self.one_model else set(self._journal.done)
        tally = Tally(rows=len(own_rows), before=len(done), failed_before=self._journal.failed)

        def decode(requests: Sequence[Request]) -> Iterator[Event]:
            return offline.run(model, requests, rows, lambda _: chosen, utilisation=tally.utilisation)

        pending_rows = (
            read(line, self.ignore_unknown)
            for line in lines_of(self.inputs)
            if line.number in own_rows and line.number not in done
        )
        for window in _windows(pending_rows, WINDOW * rows):
            for number, record, counts in self._answers(model, window, decode):
                self._journal.append(number, record)
                changes = {name: getattr(tally, name) + count for name, count in counts.items()}
                tally = dataclasses.replace(tally, **changes)
                if progress is not None:
                    progress(tally)
        return tally

    def merge(self) -> list[str]:
        """Merges all parts into the output if they are complete; else returns a sentence on each incomplete part."""
        self._journal.close()
        if self.complete or writes_no_files(self.one_model):
            return []
        missing = output_parts.merge(self.output, self.rows, self.hosts)
        self.complete = not missing
        return missing

    def _answers(
        self, model: Model, window: Sequence[Row | RejectedRow], decode: Callable[[Sequence[Request]], Iterator[Event]]
    ) -> Iterator[tuple[int, dict[str, Any], dict[str, int]]]:
        """Yields the number and record of each finished row, and increments of the tally."""
        requests: list[Request] = []
        origins: list[tuple[PendingRow, int]] = []  # row of each request, and index of the request in the row
        for row in window:
            pending = row if isinstance(row, RejectedRow) else make_pending_row(model, row, self.defaults)
            if isinstance(pending, RejectedRow):
                yield row.number, error_record(pending), {"failed": 1}
                continue
            pending.score(model)
            if not pending.num_missing:
                yield row.number, pending.record(self.token_ids), {"answered": 1}
            for index, request in enumerate(pending.requests):
                requests.append(dataclasses.replace(request, index=len(requests)))
                origins.append((pending, index))
        for event in decode(requests):
            if event.result is not None:
                pending, index = origins[event.request.index]
                pending.add_result(index, event.result)
                if not pending.num_missing:
                    tokens = sum(len(ticket.result().token_ids) for ticket in pending.response.tickets)
                    yield pending.row.number, pending.record(self.token_ids), {"answered": 1, "tokens": tokens}


def merge(output: str | Path) -> list[str]:
    """Merges the parts next to `output` if they are complete; else returns a sentence on each incomplete part.

    Raises:
        ValueError: there is no manifest of a batch job.
    """
    job = manifest.read(Path(output))
    if Path(output).exists():
        return []
    return output_parts.merge(Path(output), job["rows"], job["hosts"])


def _windows(rows: Iterator[Row | RejectedRow], size: int) -> Iterator[list[Row | RejectedRow]]:
    while window := list(itertools.islice(rows, size)):
        yield window
