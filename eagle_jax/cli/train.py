"""`eagle-jax train`: trains a draft head on conversations."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import typer
from rich.progress import TaskID
from rich.table import Table

from eagle_jax import api
from eagle_jax.api import events, first_turns
from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import counting, err, one_sentence, out, progress_bar
from eagle_jax.cli.report import facts_table
from eagle_jax.cli.tune import NUM_CALIBRATED
from eagle_jax.evaluation import Acceptance, Prompter, Question, measure_acceptance, read_questions


@one_sentence
def train(
    config: Annotated[pathlib.Path, typer.Argument(help="Settings of the run, as YAML.", metavar="CONFIG.yaml")],
    settings: Annotated[
        list[str] | None, options.option("--set KEY=VALUE", "Overrides a setting of the file; may be repeated.")
    ] = None,
    mesh: options.Mesh = None,
    coordinator: options.Coordinator = None,
    processes: options.Processes = None,
    process: options.Process = None,
) -> None:
    """Train a draft head for a target on conversations.

    The same command continues a run that was stopped or killed, with the same result. The folder `out` holds the
    settings, the checkpoints, `metrics.jsonl`, and at the end the best head, in the format of published heads. Ctrl-C
    stops after the current update, with a checkpoint and exit code 130.

    **Examples**

    - `eagle-jax train train.yaml`

    - `eagle-jax train train.yaml --set optimizer.rate=1e-4 --set out=runs/second`
    """
    if coordinator is None and (processes, process) != (None, None):
        raise ValueError("--processes and --process are for several processes that meet; give --coordinator too")
    changes = [*(settings or ()), *([] if mesh is None else [f"mesh={mesh}"])]
    run = api.read_config(config, changes)
    evaluation = run.evaluation
    questions = None if evaluation.questions is None else _questions(evaluation.questions, evaluation.limit)
    if coordinator is not None:
        with err.status("Waiting for the other processes"):
            api.join(coordinator, processes, process)
    if jax.process_index() > 0:  # only the first process prints
        err.quiet = out.quiet = True
    with Display(run.steps) as display:
        finished = api.train(run, display)
    if finished.done < run.steps:
        err.print(f"Stopped after {finished.done} of {run.steps} updates; the same command continues.")
    out.print(f"The best head, of update {finished.best}, is in {finished.head}", markup=False)
    if questions is not None and finished.done == run.steps:
        _decode(run, finished, questions)
    if finished.interrupted is not None:
        # the exit code of a command that the signal ends, which stops `&&`
        raise typer.Exit(128 + finished.interrupted)


class Display:
    """Shows the events of a run: a progress bar in a terminal, and lines that stay."""

    def __init__(self, steps: int):
        self._bar = progress_bar("{task.description}")
        self._steps, self._task = steps, TaskID(0)

    def __enter__(self) -> "Display":
        self._bar.start()
        self._task = self._bar.add_task("Loading", total=None)
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Reading):
            self._bar.update(self._task, description="Reading conversations", completed=event.kept)
        elif isinstance(event, events.Prepared):
            err.print(_summary(event, self._steps))
            self._bar.update(self._task, description="Compiling", completed=event.step, total=self._steps)
        elif isinstance(event, events.Storing):
            if event.done == 0:
                err.print(_room(event))
            self._bar.update(self._task, description="Computing features", completed=event.done, total=event.files)
        elif isinstance(event, events.Updated):
            speed = "" if event.tokens_per_second is None else f"  {event.tokens_per_second:,.0f} tokens/s"
            description = f"loss {event.loss:.3f}  agreement {_shares(event.agreement)}{speed}"
            self._bar.update(self._task, description=description, completed=event.step)
        elif isinstance(event, events.Measured):
            err.print(
                f"update {event.step}: held out, loss {event.loss:.3f}, agreement {_shares(event.agreement)}, "
                f"accepted length {event.accepted_length:.2f}"
            )


def _room(event: events.Storing) -> str:
    total, stored, free = (f"{size / 1e9:,.3g} GB" for size in (event.bytes, event.bytes - event.missing, event.free))
    already = f", {stored} of it stored already" if event.missing < event.bytes else ""
    return f"Features: {total} in {event.folder}{already}; the disk has {free} free"


def _summary(event: events.Prepared, steps: int) -> Table:
    report = event.report
    rows = [("Conversations", f"{report.kept:,} kept" + (f", {report.cut:,} of them cut" if report.cut else ""))]
    for dropped in report.dropped:
        more = ", ..." if dropped.count > len(dropped.places) else ""
        rows.append(("", f"{dropped.count:,} dropped: {dropped.reason} ({', '.join(dropped.places)}{more})"))
    rows.append(("Tokens", f"{report.tokens:,}, {report.share:.0%} of them the assistant's, which are trained on"))
    rows.append(("Rows", f"{event.rows:,} for training, {event.held_out:,} held out"))
    rows.append(("Head", f"{event.parameters:,} parameters"))
    if event.coverage is not None:
        rows.append(("Drafts", f"tokens that make up {event.coverage:.2%} of the answers"))
    if event.step:
        rows.append(("Continues", f"after update {event.step:,} of {steps:,}"))
    return facts_table(rows)


def _questions(path: str, limit: int | None) -> list[Question]:
    """Reads questions in Spec-Bench's format, or the first user turn of each conversation."""
    with pathlib.Path(path).open(encoding="utf-8", errors="replace") as file:
        if '"turns"' in file.readline():
            return read_questions(path, limit)
    turns = first_turns(path, limit)
    if not turns:
        raise ValueError(f"evaluation.questions={path} holds no question; expected one JSON object a line")
    return [Question(id=number, category="conversations", turns=(turn,)) for number, turn in enumerate(turns, start=1)]


def _decode(config: Any, finished: events.Finished, questions: Sequence[Any]) -> None:
    """Decodes the questions with the finished head and saves the result with the run."""
    measure = config.evaluation
    model = options.ModelOptions(config.target, str(finished.head), dtype=config.dtype, mesh=config.mesh).load()
    with counting("Decoding") as progress:
        acceptance = measure_acceptance(
            model,
            questions,
            max_new_tokens=measure.max_new_tokens,
            temperature=measure.temperature,
            chat=parsing.wants_chat(model, None),
            progress=progress,
        )
    if jax.process_index() == 0:
        path = pathlib.Path(config.out) / "acceptance.json"
        path.write_text(json.dumps(dataclasses.asdict(acceptance), indent=2) + "\n", encoding="utf-8")
    out.print(_sentence(acceptance, len(questions)), markup=False)
    if jax.process_count() == 1:
        try:
            _calibrate(model, config, finished)
        except (ValueError, OSError) as error:  # the trained head drafts without calibration
            err.print(f"The head was not calibrated: {error}", markup=False)


def _calibrate(model: api.Model, config: Any, finished: events.Finished) -> None:
    """Calibrates the head on questions of its training data, and saves the result in its folder."""
    prompter = Prompter(model, parsing.wants_chat(model, None), config.evaluation.max_new_tokens, cut=True)
    prompts = [
        prompter([{"role": "user", "content": turn}]) for turn in first_turns(config.data.train[0], NUM_CALIBRATED)
    ]
    fitting = [prompt.ids for prompt in prompts if prompt is not None]
    if not fitting:
        return
    with counting("Calibrating") as progress:
        api.calibrate_head(model, config.target, finished.head, fitting, progress=progress)


def _sentence(acceptance: Acceptance, questions: int) -> str:
    skipped = f" ({acceptance.skipped} did not fit)" if acceptance.skipped else ""
    length, depths = acceptance.mean_accepted_length, _shares(acceptance.by_depth)
    answered = questions - acceptance.skipped
    return f"{answered} questions{skipped}: {length:.2f} tokens a step; accepted at depth 1, 2, ...: {depths}"


def _shares(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}" for share in shares)
