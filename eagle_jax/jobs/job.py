"""Files of prompts in, one file of answers out: durable, resumable, over several hosts."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_jax.checks import whole_number
from eagle_jax.drafters.base import Drafter
from eagle_jax.jobs import manifest, output_parts
from eagle_jax.jobs.asked import PendingRow, ask, error_record
from eagle_jax.jobs.journal import Journal
from eagle_jax.jobs.lines import contents_of, lines_of
from eagle_jax.jobs.processes import NullJournal, agree_on, agree_to_begin, writes_no_files
from eagle_jax.jobs.rows import Defaults, Refused, Row, check_unique_ids, read
from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import drafter_for
from eagle_jax.ops.dispatch import settings
from eagle_jax.requests.request import Request
from eagle_jax.scheduling import offline
from eagle_jax.scheduling.offline import Utilisation
from eagle_jax.scheduling.scheduler import Event
from eagle_jax.scheduling.sizes import default_batch_size, padded_batch_size

WINDOW = 256  # rows of the input that are in memory at once, for each row of the batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally:
    """How far this host is.

    Attributes:
        rows: its share of the input.
        before: rows that earlier starts have finished.
        failed_before: those of them with an error.
        answered, failed: rows finished since this start.
        tokens: of the answers since this start.
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
    """A batch job, begun now or by an earlier start with the same input and options.

    Every row is answered as it would be alone, so the output is the same however often the job was interrupted, and on
    however many hosts (in float32; in bfloat16 up to near-ties of the logits). Each finished row is appended to this
    host's part at once; when all parts are complete they become the output, in the order of the input.

    Args:
        inputs: JSON lines; the rows of all files are numbered through.
        output: its parts and its manifest lie next to it.
        defaults: options of rows that do not state their own.
        made_with: what answers depend on besides, by name: the model, the drafter. Values are JSON's.
        token_ids: write these too.
        ignore_unknown: pass over unknown fields of rows.
        host, hosts: every `hosts`-th row is answered here, from row number `host`.
        one_model: all processes of `jax.distributed` work on the same rows with one model; process 0 writes.

    Attributes:
        complete: whether the output is there.

    Raises:
        OSError: a file that cannot be read or written.
        ValueError: no rows, two of one id, an output of something else, or another process writes this host's part.

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
            raise ValueError(f"{self.output} is input and output; name another output")
        contents = contents_of(self.inputs)
        check_unique_ids(self.inputs)
        self.rows = contents.rows
        stated = {
            "input": [path.name for path in self.inputs],
            "sha256": contents.digest,
            "rows": self.rows,
            "hosts": self.hosts,
            **json.loads(json.dumps(defaults.values)),  # as they are read again: lists for tuples
            "token_ids": token_ids,
            **({"ignore_unknown": True} if ignore_unknown else {}),
            **settings(),
            **(made_with or {}),
        }

        self._journal: Journal | NullJournal = NullJournal()
        self._is_new = False

        def begin() -> bool:
            self._is_new = self.hosts == 1 and not manifest.manifest_of(self.output).exists()
            complete = manifest.begin(self.output, stated)
            if complete:
                output_parts.remove(self.output, self.hosts)
            else:
                self._journal = Journal(output_parts.part_of(self.output, self.host, self.hosts))
            return complete

        try:
            self.complete = agree_to_begin(begin, contents.digest) if one_model else begin()
        except ValueError:  # of another process, too
            self._journal.close()
            raise

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, error: object = None, *_: object) -> None:
        self._journal.close()
        if error is not None and self._is_new and not self._journal.done:  # nothing is held to options that failed
            manifest.manifest_of(self.output).unlink(missing_ok=True)
            output_parts.remove(self.output, self.hosts)

    def run(
        self,
        model: Model,
        *,
        drafter: str | Drafter = "auto",
        tree: Any = "auto",
        batch_size: int | None = None,
        progress: Callable[[Tally], None] | None = None,
    ) -> Tally:
        """Answers the rows of this host that are left; a row that cannot be answered gets its error instead.

        Args:
            model: from `load`.
            drafter, tree, batch_size: as in `generate`.
            progress: called after every row.
        """
        own_rows = output_parts.share(self.rows, self.host, self.hosts)
        if self.complete:
            return Tally(rows=len(own_rows), before=len(own_rows))
        rows = default_batch_size(model) if batch_size is None else whole_number("batch_size", batch_size, 1)
        # One tree for the whole job: a last batch of few rows would have another, and its statistics with it.
        chosen = drafter_for(model, drafter, tree, padded_batch_size(model, rows))
        done = agree_on(self._journal.done, self.rows) if self.one_model else set(self._journal.done)
        tally = Tally(rows=len(own_rows), before=len(done), failed_before=self._journal.failed)

        def decode(requests: Sequence[Request]) -> Iterator[Event]:
            return offline.run(model, requests, rows, lambda _: chosen, utilisation=tally.utilisation)

        waiting = (
            read(line, self.ignore_unknown)
            for line in lines_of(self.inputs)
            if line.number in own_rows and line.number not in done
        )
        for window in _windows(waiting, WINDOW * rows):
            for number, record, counts in self._answers(model, window, decode):
                self._journal.append(number, record)
                more = {name: getattr(tally, name) + count for name, count in counts.items()}
                tally = dataclasses.replace(tally, **more)
                if progress is not None:
                    progress(tally)
        return tally

    def merge(self) -> list[str]:
        """Makes the output of all parts, if they are complete; what is missing otherwise, a sentence for each part."""
        self._journal.close()
        if self.complete or writes_no_files(self.one_model):
            return []
        missing = output_parts.merge(self.output, self.rows, self.hosts)
        self.complete = not missing
        return missing

    def _answers(
        self, model: Model, window: Sequence[Row | Refused], decode: Callable[[Sequence[Request]], Iterator[Event]]
    ) -> Iterator[tuple[int, dict[str, Any], dict[str, int]]]:
        """Yields the number and record of each row as it is finished, and what to count."""
        requests: list[Request] = []
        places: list[tuple[PendingRow, int]] = []  # the row of each request, and which of its requests it is
        for row in window:
            pending = row if isinstance(row, Refused) else ask(model, row, self.defaults)
            if isinstance(pending, Refused):
                yield row.number, error_record(pending), {"failed": 1}
                continue
            pending.score(model)
            if not pending.left:
                yield row.number, pending.record(self.token_ids), {"answered": 1}
            for place, request in enumerate(pending.requests):
                requests.append(dataclasses.replace(request, index=len(requests)))
                places.append((pending, place))
        for event in decode(requests):
            if event.result is not None:
                pending, place = places[event.request.index]
                pending.answered(place, event.result)
                if not pending.left:
                    tokens = sum(len(ticket.result().token_ids) for ticket in pending.answering.tickets)
                    yield pending.row.number, pending.record(self.token_ids), {"answered": 1, "tokens": tokens}


def merge(output: str | Path) -> list[str]:
    """Merges the parts that were collected next to `output`; if any are missing, returns a sentence for each of them.

    Raises:
        ValueError: there is no manifest of a batch job.
    """
    job = manifest.read(Path(output))
    if Path(output).exists():
        return []
    return output_parts.merge(Path(output), job["rows"], job["hosts"])


def _windows(rows: Iterator[Row | Refused], size: int) -> Iterator[list[Row | Refused]]:
    while window := list(itertools.islice(rows, size)):
        yield window
