"""A run's folder, read for a report: figures by task and method, and what has to be said about them."""

import dataclasses
from pathlib import Path
from typing import Any

from eagle_jax.evaluation.answers import Conversation
from eagle_jax.evaluation.metrics import Figures, by_group
from eagle_jax.evaluation.store import TRACES, answer_file, read_answers, read_json, read_run


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run has found so far.

    Attributes:
        run: what `run.json` says.
        plain: the method that is plain decoding; None if none is.
        talks: by method, about the questions that every method has answered.
        groups: figures by Spec-Bench's task, "overall" last, and by method.
        traces: timed parts and trees by method, as far as they were taken.
        notes: sentences on questions that are missing or were cut.
    """

    run: dict[str, Any]
    plain: str | None
    talks: dict[str, list[Conversation]]
    groups: dict[str, dict[str, Figures]]
    traces: dict[str, Any]
    notes: list[str]

    @property
    def methods(self) -> dict[str, dict[str, int]]:
        """Nodes and depth of each method's tree."""
        return self.run["settings"]["methods"]

    def is_chain(self, method: str) -> bool:
        """Whether it drafts one token after the other, without branches."""
        shape = self.methods[method]
        return shape["nodes"] == shape["depth"] + 1 > 1


def read_results(folder: Path) -> Results:
    """Reads a run that is over, or as much of it as there is.

    Raises:
        ValueError: the folder is no run's, a line in it is no answer, or no question has been answered by all methods.
    """
    run = read_run(folder)
    methods = list(run["settings"]["methods"])
    files = {name: answer_file(folder, name) for name in methods}
    found = {name: read_answers(file) for name, file in files.items() if file.exists()}
    missing = [name for name in methods if name not in found]
    if missing:
        raise ValueError(f"{folder} has no answers of {', '.join(missing)} yet; let the run go on")
    talks = _common({name: answers.conversations for name, answers in found.items()})
    if not talks[methods[0]]:
        raise ValueError(f"{folder} holds no question yet that every method has answered; let the run go on")
    plain = next((name for name in methods if name in ("plain", "none")), None)
    return Results(
        run=run,
        plain=plain,
        talks=talks,
        groups=by_group(talks, plain, tasks=True),
        traces=read_json(folder / TRACES) if (folder / TRACES).exists() else {},
        notes=[
            *(f"{files[name]} ends within a line, which is left out." for name in methods if found[name].unfinished),
            *_missing(run, talks[methods[0]]),
        ],
    )


def _common(talks: dict[str, list[Conversation]]) -> dict[str, list[Conversation]]:
    """The conversations about questions that every method answered, in the first method's order."""
    by_id = {name: {talk.id: talk for talk in had} for name, had in talks.items()}
    first = next(iter(by_id.values()))
    shared = [id_ for id_ in first if all(id_ in had for had in by_id.values())]
    return {name: [had[id_] for id_ in shared] for name, had in by_id.items()}


def _missing(run: dict[str, Any], talks: list[Conversation]) -> list[str]:
    """Sentences on what was not asked, or not in full."""
    settings, skipped = run["settings"], len(run["skipped"])
    limit = f"with {settings['max_new_tokens']} new tokens they exceed the context of {run['context']}"
    notes = []
    if skipped:
        notes.append(f"Skipped {skipped} of {run['questions']} questions: {limit}.")
    waiting = run["questions"] - skipped - len(talks)
    if waiting:
        notes.append(f"Left out {_count(waiting, 'question')} that not every method has answered yet.")
    turns = sum(run["turns"][str(talk.id)] - len(talk.answers) for talk in talks)
    if turns:
        notes.append(f"Left out {_count(turns, 'later turn')}: {limit}.")
    cut = sum(answer.prompt_cut > 0 for talk in talks for answer in talk.answers)
    if cut:
        notes.append(f"Cut {_count(cut, 'prompt')} from the left to what fits.")
    return notes


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
