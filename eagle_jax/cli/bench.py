"""`eagle-jax bench`: plain decoding against EAGLE on a file of questions."""

import dataclasses
import pathlib
from typing import Annotated

from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import counting, err, one_sentence, out, print_json
from eagle_jax.cli.report import as_dict, bench_table, differences, skipped_of, spent_table, surroundings
from eagle_jax.evaluation import EAGLE, OVERALL, PLAIN, Conversation, Prompter, by_group, compare, read_questions
from eagle_jax.evaluation.results import omission_notes, repetition_notes


@one_sentence
def bench(
    questions: Annotated[
        pathlib.Path, options.option("--questions -q FILE.jsonl", "Questions in Spec-Bench's format.")
    ],
    limit: Annotated[int | None, options.option("--limit", "Ask only the first N questions.", min=1)] = None,
    repeats: options.Repeats = 1,
    pair: options.ModelOptions = options.ModelOptions(),
    chat: options.Chat = None,
    sampling: options.SamplingOptions = options.SamplingOptions(max_new_tokens=128),
    tree: options.Tree = "auto",
    json_output: options.Json = False,
) -> None:
    """Measure plain decoding against EAGLE on the same questions, in one run.

    Each line of the file is a JSON object with `question_id`, `category` and `turns`. The two methods take turns, one
    request at a time. A request that had to compile is repeated, up to ten times, so compiling is not timed. Speeds are
    tokens divided by seconds, prefill included.

    **Examples**

    - `eagle-jax bench --questions question.jsonl --limit 20 --repeats 3`

    - `eagle-jax bench --questions question.jsonl --temperature 1 --tree 60,7,10 --json`
    """
    selected = read_questions(questions, limit)
    methods = (PLAIN, dataclasses.replace(EAGLE, tree=parsing.parse_tree(tree)))
    model = pair.load()
    if model.head is None:
        raise ValueError("bench needs an EAGLE head, and none was loaded; name one with --head")
    prompter = Prompter(model, parsing.wants_chat(model, chat), sampling.max_new_tokens)
    skipped = skipped_of(prompter, selected)
    conversations: dict[str, list[Conversation]] = {method.name: [] for method in methods}
    with counting("Asking") as progress:
        for conversation in compare(prompter, selected, methods, repeats=repeats, progress=progress, **sampling.draws):
            conversations[conversation.method].append(conversation)
    groups = by_group(conversations, PLAIN.name, tasks=False)
    if json_output:
        settings = dict(questions=str(questions), repeats=repeats, tree=tree, **vars(pair), **sampling.request) | {
            "dtype": model.dtype
        }
        answers = {
            name: [dataclasses.asdict(conversation) for conversation in had] for name, had in conversations.items()
        }
        report = dict(settings=settings, categories=as_dict(groups), skipped=skipped, answers=answers)
        print_json(surroundings() | report)
        return
    out.print(bench_table(groups))
    overall = groups[OVERALL][EAGLE.name]
    out.print(spent_table({name: figures.spent for name, figures in groups[OVERALL].items()}))
    out.print(f"Identical texts: {overall.identical} of {overall.answers}", markup=False)
    turns, plain = {str(question.id): len(question.turns) for question in selected}, conversations[PLAIN.name]
    notes = omission_notes(
        len(selected), len(skipped), turns, plain, max_new_tokens=sampling.max_new_tokens, context=model.context
    )
    for sentence in (*differences(conversations, PLAIN.name), *repetition_notes(repeats), *notes):
        err.print(sentence, markup=False)
