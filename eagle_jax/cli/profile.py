"""`eagle-jax profile`: shows where the time of a step goes."""

import dataclasses
import pathlib
from typing import Annotated, Any

from rich.table import Table

from eagle_jax import api
from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import err, one_sentence, out, print_json
from eagle_jax.cli.report import new_table, surroundings

PROMPT = "A train travels 60 miles in 2 hours. How fast is it?"


@one_sentence
def profile(
    pair: options.PairArguments = options.PairArguments(),
    prompt: Annotated[str, options.option("--prompt -p", "Prompt to answer.")] = PROMPT,
    max_new_tokens: Annotated[
        int, options.option("--max-new-tokens -n", "Tokens of the answer that the caches have room for.")
    ] = 256,
    chat: options.Chat = None,
    drafter: options.Drafter = "auto",
    tree: options.Tree = "auto",
    draft_model: options.DraftModel = None,
    trace: Annotated[
        pathlib.Path | None, options.option("--trace DIR", "Keep the profiler's trace, for TensorBoard or Perfetto.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show where the time of a step goes: drafting level by level, checking, committing.

    A few steps run under JAX's profiler, and the times of operations are summed by phase.

    **Examples**

    - `eagle-jax profile --tree 8,3,3`

    - `eagle-jax profile ./llama ./eagle --trace traces`
    """
    drafting: dict[str, Any] = dict(drafter=drafter, tree=parsing.parse_tree(tree))
    model = pair.load(draft=draft_model)
    question: Any = [{"role": "user", "content": prompt}] if parsing.wants_chat(model, chat) else prompt
    with err.status("Compiling and running"):
        profiled = api.profile(model, question, max_new_tokens=max_new_tokens, folder=trace, **drafting)
    if as_json:
        print_json(surroundings() | dataclasses.asdict(profiled))
        return
    out.print(table(profiled))
    prefill, plain, step = (1e3 * seconds for seconds in (profiled.prefill, profiled.plain, profiled.step))
    out.print(f"Prompt of {profiled.prompt_tokens} tokens: {prefill:.1f} ms; a step of plain decoding: {plain:.2f} ms.")
    out.print(f"Step: {step:.2f} ms, {step / plain:.2f} plain steps, for {profiled.tokens:.2f} tokens.")
    if sum(profiled.phases.values()) > profiled.step:
        out.print("Phases sum to more than the step, since on several cores their operations overlap.")
    if trace is not None:
        err.print(f"The trace is in {trace}; TensorBoard and ui.perfetto.dev show it.", style="dim", markup=False)


def table(profiled: api.Profile) -> Table:
    """Returns a table of the phases of a step, and their shares."""
    total = sum(profiled.phases.values())
    rows = [(name, f"{1e3 * part:.3f}", f"{100 * part / total:.0f} %") for name, part in profiled.phases.items()]
    return new_table(("phase", "ms", "share"), rows)
