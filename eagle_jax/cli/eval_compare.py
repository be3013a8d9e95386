"""Compares two files of answers: the same texts, or the positions where they diverge."""

import pathlib
from typing import Any

from eagle_jax import api
from eagle_jax.cli.console import err, out
from eagle_jax.cli.options import ModelOptions
from eagle_jax.evaluation import Conversation, divergence
from eagle_jax.evaluation.store import RUN, Answers, read_answers, read_run

GREEDY: dict[str, Any] = {"temperature": 0.0}


def compare_files(first: pathlib.Path, second: pathlib.Path, target: str | None, dtype: Any) -> int:
    """Prints what differs and a summary; returns the number of conversations that differ."""
    a, b = _read(first), _read(second)
    second_by_id = {conversation.id: conversation for conversation in b.conversations}
    pairs = [(one, second_by_id[one.id]) for one in a.conversations if one.id in second_by_id]
    if not pairs:
        raise ValueError(
            f"{first} and {second} have no question in common; give two files that answer the same questions"
        )
    settings, others = _settings(first), _settings(second)
    if changes := _changes(settings.get("sampling"), others.get("sampling")):
        err.print(f"The two files were sampled with different options: {changes}.", markup=False)
    limits = settings.get("max_new_tokens"), others.get("max_new_tokens")
    differing = [(one, other, place) for one, other in pairs if (place := divergence(one, other))]
    ends = {one.id: _cut(limits, one, other, *place) for one, other, place in differing}
    cut = {id_: sentence for id_, sentence in ends.items() if sentence}
    for sentence in cut.values():
        out.print(sentence, markup=False)
    if uncut := [(one, other, place) for one, other, place in differing if one.id not in cut]:
        how: dict[str, Any] = {name: settings.get(name) for name in ("mesh", "quantize", "target_config")}
        how |= dict(target=target or settings.get("target"), dtype=dtype or settings.get("dtype"))
        model = ModelOptions(**how).load()
        for one, other, place in uncut:
            out.print(_sentence(model, settings.get("sampling", GREEDY), one, other, *place), markup=False)
    longer = [pair for pair in pairs if len(pair[0].answers) != len(pair[1].answers) and not divergence(*pair)]
    for one, other in longer:
        turns = f"{len(one.answers)} turns in the first and {len(other.answers)} in the second"
        out.print(f"Question {one.id}: {turns}, identical as far as both go.", markup=False)
    unpaired = len(a.conversations) + len(b.conversations) - 2 * len(pairs)
    if unpaired:
        err.print(f"Answered in one file only: {unpaired} more questions.", markup=False)
    different = len(differing) + len(longer)
    out.print(f"{len(pairs) - different} of {len(pairs)} questions have identical texts.", markup=False)
    return different


def _read(path: pathlib.Path) -> Answers:
    answers = read_answers(path)
    if answers.unfinished:
        err.print(f"{path} ends in an unfinished line, which is ignored.", markup=False)
    return answers


def _settings(file: pathlib.Path) -> dict[str, Any]:
    """Returns the settings of the run that a file belongs to; empty if the file is not in a run's folder."""
    return read_run(file.parent)["settings"] if (file.parent / RUN).exists() else {}


def _changes(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str:
    """Returns how two runs differ in sampling options; empty if either run's are unknown."""
    if a is None or b is None:
        return ""
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]
    return ", ".join(f"{name} {a.get(name)} in the first and {b.get(name)} in the second" for name in names)


def _cut(limits: tuple[int | None, int | None], one: Conversation, other: Conversation, turn: int, token: int) -> str:
    """Returns a sentence if one answer was cut at its limit and the other continues; else an empty text."""
    for limit, conversation, which in ((limits[0], one, "first"), (limits[1], other, "second")):
        if token == len(conversation.answers[turn].token_ids) == limit and limits[0] != limits[1]:
            place = f"Question {one.id}, turn {turn + 1}"
            return f"{place}: identical up to token {token}, where the {which} was cut (max_new_tokens={limit})."
    return ""


def _sentence(
    model: api.Model, sampling: dict[str, Any], one: Conversation, other: Conversation, turn: int, token: int
) -> str:
    a, b = one.answers[turn], other.answers[turn]
    place = f"Question {one.id}, turn {turn + 1}"
    if a.prompt_ids != b.prompt_ids:
        return f"{place}: the prompts differ already, so the texts cannot be compared."
    before = [*a.prompt_ids, *a.token_ids[:token]]
    (best, high), (next_, low) = api.closest_draws(model, before, **sampling)
    return (
        f"{place}, token {token + 1}: {_token(model, a.token_ids, token)} in the first, "
        f"{_token(model, b.token_ids, token)} in the second; the target's best two are "
        f"{_word(model, best)} {high:.4f} and {_word(model, next_)} {low:.4f}, {high - low:.2g} apart."
    )


def _token(model: api.Model, ids: tuple[int, ...], place: int) -> str:
    return _word(model, ids[place]) if place < len(ids) else "the end"


def _word(model: api.Model, token: int) -> str:
    return f"{model.tokenizer.decode([token])!r} ({token})"
