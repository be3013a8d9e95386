"""`eagle-jax eval`: runs several methods on a file of questions, reports a run, and compares two runs' answers."""

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eagle_jax import api
from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import counting, err, one_sentence, out, print_json
from eagle_jax.cli.eval_compare import compare_files
from eagle_jax.cli.eval_methods import parse_methods, refuse_unused, with_models
from eagle_jax.cli.report import as_dict, differences, rich_table, skipped_of, surroundings
from eagle_jax.evaluation import Method, Prompter, Question, compare, read_questions
from eagle_jax.evaluation.comparison import first_prompt
from eagle_jax.evaluation.page import render
from eagle_jax.evaluation.results import Results, read_results
from eagle_jax.evaluation.store import TRACES, Folder, lock_folder, write_json
from eagle_jax.evaluation.tables import tables
from eagle_jax.evaluation.traces import take_traces

PAGE = "report.html"


class RunByDefault(TyperGroup):
    """`eval FILE ...` is `eval run FILE ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known_words = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, ["run", *args] if args and args[0] not in known_words else args)


evaluate = typer.Typer(cls=RunByDefault, no_args_is_help=True, rich_markup_mode="markdown")

Run = Annotated[pathlib.Path, typer.Argument(metavar="FOLDER", help="Folder of a run: its `--out`.")]
Line = Annotated[pathlib.Path, typer.Argument(metavar="FILE.jsonl", help="A file of answers of a run's folder.")]


@dataclasses.dataclass(frozen=True)
class Weights(options.ModelOptions):
    """How the weights of target and heads are loaded."""

    target: str | None = dataclasses.field(default=None, init=False)
    head: str | None = dataclasses.field(default=None, init=False)


@evaluate.callback()
def evaluation() -> None:
    """Ask the same questions under several methods, and compare their speeds and texts.

    `eagle-jax eval FILE.jsonl --methods ... --out FOLDER` asks, `eval report` shows a run again, `eval compare` finds
    where two files of answers diverge.
    """


@evaluate.command()
@one_sentence
def run(
    questions: Annotated[pathlib.Path, typer.Argument(metavar="FILE.jsonl", help="Questions in Spec-Bench's format.")],
    folder: Annotated[pathlib.Path, options.option("--out -o FOLDER", "Folder for answers and report.")],
    methods: Annotated[
        str,
        options.drafting_option(
            "--methods -m NAME[@HEAD][:TREE],...",
            "Drafters, each with a tree if it takes one: plain,eagle:60,7,10,eagle:eagle1,prompt-lookup.",
        ),
    ] = "plain,eagle",
    limit: Annotated[int | None, options.option("--limit", "Ask only the first N questions.", min=1)] = None,
    repeats: options.Repeats = 1,
    cut: Annotated[
        bool, options.option("--cut", "Truncate conversations that are too long on the left, instead of skipping them.")
    ] = False,
    target: options.Target = None,
    heads: Annotated[
        list[str] | None,
        options.model_option(
            "--head PATH|NAME",
            "Folder or hub name of a head; may be repeated. A method takes the one after its @ (eagle@HEAD), "
            "else the first that suits it. The target's own head is always available.",
        ),
    ] = None,
    draft: options.DraftModel = None,
    datastore: options.Datastore = None,
    weights: Weights = Weights(),
    chat: options.Chat = None,
    sampling: options.SamplingOptions = options.SamplingOptions(max_new_tokens=128),
) -> None:
    """Ask every question under every method, in one run, and report.

    Each answer is saved when it is finished, one file per method in FOLDER: the same command continues a run that was
    stopped. The method that begins changes with each question. A request that had to compile is repeated, up to ten
    times, so compiling is not timed. At the end a table is printed and FOLDER/report.html written.

    **Examples**

    - `eagle-jax eval question.jsonl --methods plain,eagle --limit 20 --out runs/eval`

    - `eagle-jax eval question.jsonl --methods plain,eagle:60,7,10,eagle:eagle1 --cut --temperature 1 --out runs/trees`
    """
    selected = read_questions(questions, limit)
    parsed = parse_methods(methods)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; expected a new folder, or the folder of a run to continue")
    head_config = weights.head_config
    changes = None if head_config is None else parsing.parse_entries(head_config, "--head-config")
    if changes is not None and not heads:
        raise ValueError("--head-config needs --head; name the heads whose config it changes")
    target = target or api.default_target(next(iter(heads or ()), None))
    model = weights.load(target=target, head_config=None, draft=draft, datastore=datastore)
    others = {head: api.with_head(model, head, head_config=changes, quantize=weights.quantize) for head in heads or ()}
    suited = with_models(parsed, others, model)
    chosen, shapes = [method for method, _ in suited], {method.name: shape for method, shape in suited}
    refuse_unused(chosen, others, draft, datastore)
    prompter = Prompter(model, parsing.wants_chat(model, chat), sampling.max_new_tokens, cut)
    skipped = skipped_of(prompter, selected)
    settings = dict(
        questions=_digest(selected), methods=shapes, target=target, target_config=weights.target_config,
        heads=heads or [], **weights.given("head_config"), draft=draft,
        datastore=datastore, fingerprints=_fingerprints(target, heads or [], draft, datastore),
        mesh=weights.mesh, dtype=model.dtype, quantize=weights.quantize, chat=prompter.chat, cut=cut,
        max_new_tokens=sampling.max_new_tokens, sampling=sampling.draws, repeats=repeats, **api.operation_settings(),
    )  # fmt: skip
    turns = {question.id: len(question.turns) for question in selected}
    about: dict[str, Any] = dict(
        file=str(questions), questions=len(selected), turns=turns, skipped=skipped, context=model.context
    )
    about["chat_template"] = getattr(model.tokenizer, "chat_template", None) if prompter.chat else None
    with lock_folder(folder), _run_folder(folder, settings, about) as run:
        _ask(run, prompter, selected, chosen, repeats, sampling.draws)
        results = read_results(folder)
        (folder / PAGE).write_text(render(results), encoding="utf-8")
    _show(results)
    err.print(f"Answers and report are in {folder}; the page is {folder / PAGE}.", markup=False)


@evaluate.command()
@one_sentence
def report(
    folder: Run,
    page: Annotated[
        pathlib.Path | None, options.option("--html FILE", "Also write the page with figures to FILE.")
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Show the figures of a run again; it may be unfinished.

    **Examples**

    - `eagle-jax eval report runs/eval`

    - `eagle-jax eval report runs/eval --html report.html`
    """
    results = read_results(folder)
    if page is not None:
        page.write_text(render(results), encoding="utf-8")
    if json_output:
        print_json({**results.run, "notes": results.notes, "traces": results.traces, "tasks": as_dict(results.groups)})
    else:
        _show(results)


@evaluate.command("compare")
@one_sentence
def compare_answers(first: Line, second: Line, target: options.Target = None, dtype: options.Dtype = None) -> None:
    """Check that two files hold the same texts; show where a pair diverges, and how close the choice was.

    The target computes that position again: its two best tokens and their logits (when sampling, the values that the
    draw compares) show whether rounding could decide. The target is the first run's, unless `--target` names another.
    Exits with 1 if any text differs.

    **Examples**

    - `eagle-jax eval compare runs/eval/plain.jsonl runs/eval/eagle.jsonl`
    """
    if compare_files(first, second, target, dtype):
        raise typer.Exit(1)


def _run_folder(folder: pathlib.Path, settings: dict[str, Any], about: dict[str, Any]) -> Folder:
    """Opens the folder of a new or continued run, and records the command and the machine."""
    versions = surroundings()
    settings["device"] = versions.pop("device")
    command = shlex.join(["eagle-jax", *sys.argv[1:]])
    started = datetime.datetime.now().isoformat(" ", "minutes")
    run = Folder(folder, settings, versions | about | dict(command=command, started=started, cores=os.cpu_count()))
    for note in run.notes:
        err.print(note, markup=False)
    return run


def _ask(
    run: Folder,
    prompter: Prompter,
    questions: Sequence[Question],
    methods: Sequence[Method],
    repeats: int,
    sampling: Any,
) -> None:
    """Asks all questions that have no answer yet; then times the parts of a step, once."""
    with counting("Asking") as progress:
        conversations = compare(
            prompter, questions, methods, answered=run.answered, repeats=repeats, progress=progress, **sampling
        )
        for conversation in conversations:
            run.append(conversation)
    traces = run.path / TRACES
    if not traces.exists():
        try:
            with counting("Timing the parts of a step") as progress:
                parts = take_traces(prompter, first_prompt(prompter, questions), methods, progress=progress, **sampling)
        except Exception as error:  # the answers are worth a report without them
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            err.print(f"The report lacks the parts of a step, which could not be timed ({reason}).", markup=False)
        else:
            write_json(traces, parts)


def _fingerprints(target: str | None, heads: Sequence[str], draft: str | None, datastore: str | None) -> dict[str, Any]:
    """Returns fingerprints of the files, since a path may hold another head when a run is continued."""
    digests = api.fingerprints(target, None, draft=draft, datastore=datastore)
    others = {f"head {head}": api.fingerprints(target, head)["head"] for head in heads}
    return {f"fingerprint of {name}": digest for name, digest in (digests | others).items() if digest is not None}


def _digest(questions: Sequence[Question]) -> str:
    """Identifies a list of questions: their number and a fingerprint."""
    content = json.dumps([[question.id, question.category, *question.turns] for question in questions])
    return f"{len(questions)} with fingerprint {hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _show(results: Results) -> None:
    for table in tables(results):
        out.print(rich_table(table))
    sentences = [] if results.plain is None else differences(results.conversations, results.plain)
    for sentence in (*results.notes, *sentences):
        err.print(sentence, markup=False)
