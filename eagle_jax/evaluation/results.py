"""Reads the results of a run for a report: figures by task and method, and notes."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_jax.evaluation.answers import Conversation
from eagle_jax.evaluation.metrics import MIN_REPETITIVE_TOKENS, OVERALL, Figures, by_group
from eagle_jax.evaluation.store import RUN, TRACES, answer_file, read_answers, read_json, read_run

# Types of the entries of `run.json` that a report needs; `methods` is checked by `read_run`.
RUN_TYPES = {
    **dict(command=str, started=str, cores=int, eagle_jax=str, jax=str),
    **dict(questions=int, skipped=list, turns=dict, context=int),
}
SETTING_TYPES = dict(max_new_tokens=int, sampling=dict, chat=bool, heads=list, dtype=str, device=str)


@dataclasses.dataclass(frozen=True)
class Results:
    """Results of a run so far.

    Attributes:
        run: content of `run.json`.
        plain: name of the method that is plain decoding; None if there is none.
        conversations: by method, for the questions that every method has answered.
        groups: figures by Spec-Bench's task, with "overall" last, and by method.
        traces: times of step parts by method and a draft tree, if they were recorded.
        notes: sentences on questions that are missing or truncated.
    """

    run: dict[str, Any]
    plain: str | None
    conversations: dict[str, list[Conversation]]
    groups: dict[str, dict[str, Figures]]
    traces: dict[str, Any]
    notes: list[str]

    @property
    def methods(self) -> dict[str, dict[str, int]]:
        """Number of nodes and depth of each method's tree."""
        return self.run["settings"]["methods"]

    def is_chain(self, method: str) -> bool:
        """Returns whether the method's tree has no branches."""
        shape = self.methods[method]
        return shape["nodes"] == shape["depth"] + 1 > 1


def read_results(folder: Path) -> Results:
    """Reads a complete or incomplete run.

    Raises:
        ValueError: the folder has no run, a line is not an answer, or no question was answered by all methods.
    """
    run = read_run(folder)
    for entries, kinds in ((run, RUN_TYPES), (run["settings"], SETTING_TYPES)):
        for name, kind in kinds.items():
            if not isinstance(entries.get(name), kind):
                raise ValueError(
                    f"{folder / RUN} has {name} = {entries.get(name)!r}, which `eagle-jax eval` never writes; give the "
                    "folder of a run"
                )
    methods = list(run["settings"]["methods"])
    files = {name: answer_file(folder, name) for name in methods}
    by_method = {name: read_answers(file) for name, file in files.items() if file.exists()}
    missing = [name for name in methods if name not in by_method]
    if missing:
        raise ValueError(f"{folder} has no answers of {', '.join(missing)} yet; continue the run")
    conversations = _common({name: answers.conversations for name, answers in by_method.items()})
    if not conversations[methods[0]]:
        raise ValueError(f"{folder} has no question yet that every method has answered; continue the run")
    plain = next((name for name in methods if name in ("plain", "none")), None)
    groups = by_group(conversations, plain, tasks=True)
    return Results(
        run=run,
        plain=plain,
        conversations=conversations,
        groups=groups,
        traces=read_json(folder / TRACES) if (folder / TRACES).exists() else {},
        notes=[
            *(
                f"{files[name]} ends within a line, which is left out."
                for name in methods
                if by_method[name].unfinished
            ),
            *repetition_notes(run["settings"].get("repeats", 1)),
            *_repetitive(groups[OVERALL][plain or methods[0]]),
            *omission_notes(
                run["questions"],
                len(run["skipped"]),
                run["turns"],
                conversations[methods[0]],
                max_new_tokens=run["settings"]["max_new_tokens"],
                context=run["context"],
            ),
        ],
    )


def _common(conversations: dict[str, list[Conversation]]) -> dict[str, list[Conversation]]:
    """Returns the conversations for questions that every method answered, in the first method's order."""
    by_id = {
        name: {conversation.id: conversation for conversation in conversations_of}
        for name, conversations_of in conversations.items()
    }
    first = next(iter(by_id.values()))
    shared = [id_ for id_ in first if all(id_ in conversations_of for conversations_of in by_id.values())]
    return {name: [conversations_of[id_] for id_ in shared] for name, conversations_of in by_id.items()}


def repetition_notes(repeats: int) -> list[str]:
    """Returns a sentence on repetitions, if there were any."""
    return [f"Each question was asked {repeats} times under each method; the quickest counts."] if repeats > 1 else []


def omission_notes(
    questions: int,
    skipped: int,
    turns: Mapping[str, int],
    conversations: Sequence[Conversation],
    *,
    max_new_tokens: int,
    context: int,
) -> list[str]:
    """Returns sentences on questions, turns and characters that were left out.

    Args:
        questions, skipped: numbers of all questions and of those that do not fit.
        turns: number of turns of each question, by its id as text.
        conversations: one method's conversations.
    """
    limit = f"with {max_new_tokens} new tokens they exceed the context of {context}"
    notes = []
    if skipped:
        notes.append(f"Skipped {skipped} of {questions} questions: {limit}.")
    unanswered = questions - skipped - len(conversations)
    if unanswered:
        notes.append(f"Left out {_count(unanswered, 'question')} that not every method has answered yet.")
    omitted_turns = sum(
        turns[str(conversation.id)] - len(conversation.answers)
        for conversation in conversations
        if str(conversation.id) in turns
    )
    if omitted_turns:
        notes.append(f"Left out {_count(omitted_turns, 'later turn')}: {limit}.")
    num_cut = sum(answer.prompt_cut > 0 for conversation in conversations for answer in conversation.answers)
    if num_cut:
        notes.append(f"Cut {_count(num_cut, 'prompt')} from the left to what fits.")
    return notes


def _repetitive(figures: Figures) -> list[str]:
    """Returns a sentence on repetitive answers, if there are any, since they are easier to draft."""
    if not figures.repetitive:
        return []
    return [
        f"{figures.repetitive} of {_count(figures.answers, 'answer')} repeat themselves (of "
        f"{MIN_REPETITIVE_TOKENS} tokens or more, and less than half of their pairs of tokens are new), which makes "
        "drafting look better than it is."
    ]


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
