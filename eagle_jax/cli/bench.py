"""`eagle-jax bench`: plain decoding against EAGLE on a file of questions."""

import pathlib
from typing import Annotated

import typer

from eagle_jax.cli import options
from eagle_jax.cli.console import err, load, one_sentence, out, print_json, progress_bar
from eagle_jax.cli.report import as_dict, differences, shortfall, table
from eagle_jax.evaluation import compare, read_questions, summarize


@one_sentence
def bench(
    questions: Annotated[
        pathlib.Path, typer.Option("--questions", "-q", metavar="FILE.jsonl", help="Questions in Spec-Bench's format.")
    ],
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Ask only the first so many.")] = None,
    target: options.Target = None,
    head: options.Head = None,
    dtype: options.Dtype = None,
    chat: options.Chat = None,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    tree: options.Tree = "auto",
    json_output: options.Json = False,
) -> None:
    """Measure plain decoding against EAGLE on the same questions, in one run.

    Each line of the file is a JSON object with `question_id`, `category` and `turns`. The two methods take turns, one
    request at a time; a request that had to compile is repeated, so compiling is never timed. Speeds are tokens divided
    by seconds, prefill included.

    **Examples**

    - `eagle-jax bench --questions question.jsonl --limit 20`

    - `eagle-jax bench --questions question.jsonl --temperature 1 --tree 60,7,10 --json`
    """
    asked = read_questions(questions, limit)
    shape = options.parse_tree(tree)
    model = load(target, head, dtype)
    if model.head is None:
        raise ValueError("bench compares with an EAGLE head, and none was loaded; name one with --head")
    with progress_bar("Asking") as bar:
        task = bar.add_task("", total=len(asked))
        comparison = compare(
            model,
            asked,
            max_new_tokens=max_new_tokens,
            tree=shape,
            chat=options.wants_chat(model, chat),
            progress=lambda done, total: bar.update(task, completed=done),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        )
    if not comparison.records:
        raise ValueError(
            f"none of the {len(asked)} questions fits: prompt and {max_new_tokens} new tokens must stay within the "
            f"context of {model.context} tokens; lower --max-new-tokens or take another file"
        )
    if json_output:
        settings = dict(
            questions=str(questions), max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            min_p=min_p, seed=seed, tree=tree,
        )  # fmt: skip
        print_json(as_dict(comparison, settings))
        return
    rows = summarize(comparison.records)
    out.print(table(rows))
    out.print(f"Identical texts: {rows[-1].identical} of {rows[-1].answers}", markup=False)
    for sentence in (*differences(comparison), *shortfall(comparison, max_new_tokens, model.context)):
        err.print(sentence, markup=False)
