"""A run's folder, read for a report: figures by task and method, and notes on them."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_jax.evaluation.answers import Conversation
from eagle_jax.evaluation.metrics import LONG, OVERALL, Figures, by_group
from eagle_jax.evaluation.store import RUN, TRACES, answer_file, read_answers, read_json, read_run

# Types of the entries of a run that a report shows; `methods` is checked when the file is read.
RUN_TYPES = {
    **dict(command=str, started=str, cores=int, eagle_jax=str, jax=str),
    **dict(questions=int, skipped=list, turns=dict, context=int),
}
SETTING_TYPES = dict(max_new_tokens=int, sampling=dict, chat=bool, heads=list, dtype=str, device=str)


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
        """Returns whether it drafts one token after the other, without branches."""
        shape = self.methods[method]
        return shape["nodes"] == shape["depth"] + 1 > 1


def read_results(folder: Path) -> Results:
    """Reads a run that is over, or as much of it as there is.

    Raises:
        ValueError: the folder is no run's, a line in it is no answer, or no question has been answered by all methods.
    """
    run = read_run(folder)
    for entries, kinds in ((run, RUN_TYPES), (run["settings"], SETTING_TYPES)):
        for name, kind in kinds.items():
            if not isinstance(entries.get(name), kind):
                raise ValueError(
                    f"{folder / RUN} has {name} = {entries.get(name)!r}, and `eagle-jax eval` writes no such thing; "
                    "give the folder of a run"
                )
    methods = list(run["settings"]["methods"])
    files = {name: answer_file(folder, name) for name in methods}
    by_method = {name: read_answers(file) for name, file in files.items() if file.exists()}
    missing = [name for name in methods if name not in by_method]
    if missing:
        raise ValueError(f"{folder} has no answers of {', '.join(missing)} yet; let the run go on")
    conversations = _common({name: answers.conversations for name, answers in by_method.items()})
    if not conversations[methods[0]]:
        raise ValueError(f"{folder} holds no question yet that every method has answered; let the run go on")
    plain = next((name for name in methods if name in ("plain", "none")), None)
    groups = by_group(conversations, plain, tasks=True)
    return Results(
        run=run,
        plain=plain,
        talks=conversations,
        groups=groups,
        traces=read_json(folder / TRACES) if (folder / TRACES).exists() else {},
        notes=[
            *(
                f"{files[name]} ends within a line, which is left out."
                for name in methods
                if by_method[name].unfinished
            ),
            *repeated(run["settings"].get("repeats", 1)),
            *_repetitive(groups[OVERALL][plain or methods[0]]),
            *left_out(
                run["questions"],
                len(run["skipped"]),
                run["turns"],
                conversations[methods[0]],
                room=run["settings"]["max_new_tokens"],
                context=run["context"],
            ),
        ],
    )


def _common(conversations: dict[str, list[Conversation]]) -> dict[str, list[Conversation]]:
    """Returns the conversations about questions that every method answered, in the first method's order."""
    by_id = {name: {conversation.id: conversation for conversation in had} for name, had in conversations.items()}
    first = next(iter(by_id.values()))
    shared = [id_ for id_ in first if all(id_ in had for had in by_id.values())]
    return {name: [had[id_] for id_ in shared] for name, had in by_id.items()}


def repeated(repeats: int) -> list[str]:
    """Returns a sentence on which run's times are reported, where there were several."""
    return [f"Each question was asked {repeats} times under each method; the quickest counts."] if repeats > 1 else []


def left_out(
    questions: int,
    skipped: int,
    turns: Mapping[str, int],
    conversations: Sequence[Conversation],
    *,
    room: int,
    context: int,
) -> list[str]:
    """Returns sentences on what was not asked, or not in full; none when all was.

    Args:
        questions, skipped: how many there are, and how many of them do not fit.
        turns: how many turns each question has, by its id as text.
        conversations: one method's conversations.
        room: tokens that an answer may have.
    """
    limit = f"with {room} new tokens they exceed the context of {context}"
    notes = []
    if skipped:
        notes.append(f"Skipped {skipped} of {questions} questions: {limit}.")
    waiting = questions - skipped - len(conversations)
    if waiting:
        notes.append(f"Left out {_count(waiting, 'question')} that not every method has answered yet.")
    later = sum(
        turns[str(conversation.id)] - len(conversation.answers)
        for conversation in conversations
        if str(conversation.id) in turns
    )
    if later:
        notes.append(f"Left out {_count(later, 'later turn')}: {limit}.")
    cut = sum(answer.prompt_cut > 0 for conversation in conversations for answer in conversation.answers)
    if cut:
        notes.append(f"Cut {_count(cut, 'prompt')} from the left to what fits.")
    return notes


def _repetitive(figures: Figures) -> list[str]:
    """Returns a sentence on answers that go round in circles, since they are drafted more easily than text is."""
    if not figures.repetitive:
        return []
    return [
        f"{figures.repetitive} of {_count(figures.answers, 'answer')} repeat themselves (of {LONG} tokens or more, and "
        "less than half of their pairs of tokens are new), which makes drafting look better than it is."
    ]


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
