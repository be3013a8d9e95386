"""`eagle-jax batch`: answers files of prompts."""

import dataclasses
import math
import pathlib
from typing import Annotated, Any

import jax
import typer

from eagle_jax import api
from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import err, one_sentence, out
from eagle_jax.cli.meter import meter


@one_sentence
def batch(
    files: Annotated[
        list[pathlib.Path],
        typer.Argument(metavar="IN.jsonl... OUT.jsonl", help="Rows to answer, then the file for the answers."),
    ],
    pair: options.ChatModelOptions = options.ChatModelOptions(),
    sampling: options.SamplingOptions = options.SamplingOptions(),
    stop: options.Stop = None,
    settings: options.Set = None,
    drafting: options.DraftingOptions = options.DraftingOptions(),
    batch_size: Annotated[
        int | None, options.drafting_option("--batch-size", "Answers decoded together.", min=1)
    ] = None,
    token_ids: Annotated[bool, options.output_option("--token-ids", "Write the answers' tokens too.")] = False,
    ignore_unknown: options.IgnoreUnknown = False,
    merge: Annotated[
        bool, options.hosts_option("--merge", "Merge the parts next to OUT.jsonl into it, and answer nothing.")
    ] = False,
    processes: options.Processes = None,
    process: options.Process = None,
    coordinator: options.Coordinator = None,
    timeout: Annotated[
        float, options.hosts_option("--timeout", "Seconds to wait for the other processes.", min=1)
    ] = 300.0,
    one_model: Annotated[
        bool,
        options.hosts_option(
            "--one-model",
            "Shard one model over the devices of all processes, which work on the same rows; needs --coordinator.",
        ),
    ] = False,
) -> None:
    """Answer every row of JSON-lines files; a killed job continues, and several hosts may share it.

    A row is `{"id": "a", "prompt": "..."}`, with `messages` (a chat) or `prompt_ids` (tokens) instead of `prompt`,
    and optional settings of its own: max_new_tokens, temperature, top_k, top_p, min_p, seed, stop, and the names of
    `--set`. Rows in OpenAI's batch format are answered in that format. Rows that cannot be answered get an `error`, and
    the exit code is 1. Each answer is saved when it is finished: the same command continues a job that was stopped or
    killed, and the output, in the order of the input, is the same.

    **Examples**

    - `eagle-jax batch prompts.jsonl answers.jsonl --max-new-tokens 64`

    - `eagle-jax batch prompts.jsonl sampled.jsonl --temperature 1 --batch-size 32`

    - `eagle-jax batch prompts.jsonl halves.jsonl --process 0 --processes 2`
    """
    if merge:
        _merge(files)
        return
    *inputs, output = files
    if not inputs:
        raise ValueError(f"only {output} was given; expected IN.jsonl... and then OUT.jsonl")
    pair = dataclasses.replace(pair, mesh=_mesh(pair.mesh, coordinator, one_model))
    host, hosts = _meet(coordinator, processes, process, timeout, one_model)
    drafter = drafting.arguments
    defaults = api.Defaults(**sampling.request, stop=tuple(stop or ()), **parsing.parse_set(settings))
    made_with = {
        **api.fingerprints(pair.target, pair.head, **drafting.sources),
        "dtype": api.dtype_name(pair.dtype),
        "quantize": pair.quantize,
        "drafter": drafting.drafter,
        "tree": drafting.tree,
        **pair.given("target_config", "head_config", "chat_template"),
    }
    failed = 0
    how: dict[str, Any] = dict(host=host, hosts=hosts, one_model=one_model)
    how |= dict(token_ids=token_ids, ignore_unknown=ignore_unknown)
    with api.Job(inputs, output, defaults=defaults, made_with=made_with, **how) as job:
        if job.complete:
            out.print(f"{output} is complete; nothing was left to do", markup=False)
        else:
            model = pair.load(**drafting.sources)
            with meter("Answering") as show:
                tally = job.run(model, batch_size=batch_size, progress=show, **drafter)
            _report(output, tally, job.merge(), hosts)
            failed = tally.failed + tally.failed_before
    if coordinator is not None:
        api.wait_for_others("the end of a batch job")
    if failed:
        raise typer.Exit(1)


def _meet(
    coordinator: str | None, processes: int | None, process: int | None, timeout: float, one_model: bool
) -> tuple[int, int]:
    """Returns which host this is, of how many; waits for the others where a coordinator is named."""
    if coordinator is None:
        if one_model:
            raise ValueError("--one-model is for several processes; give --coordinator too")
        if (processes is None) != (process is None):
            raise ValueError("--processes and --process go together; give both or none")
        return process or 0, processes or 1
    with err.status("Waiting for the other processes"):
        api.join(coordinator, processes, process, timeout=timeout)
    return (0, 1) if one_model else (jax.process_index(), jax.process_count())


def _mesh(mesh: str | None, coordinator: str | None, one_model: bool) -> str | None:
    """Returns the mesh: a process's own devices for a model of its own, all devices for a shared model."""
    if one_model:
        if mesh is not None and mesh.startswith(api.LOCAL):
            raise ValueError(
                f"--mesh {mesh} names the devices of one process, and --one-model shards over all; give one of the two"
            )
        return mesh or "auto"
    return mesh if mesh is None or coordinator is None else api.LOCAL + mesh.removeprefix(api.LOCAL)


def _merge(files: list[pathlib.Path]) -> None:
    if len(files) > 1:
        raise ValueError(f"--merge takes the output alone, and {len(files)} files were given")
    missing = api.merge(files[0])
    if missing:
        raise ValueError(f"{'; '.join(missing)}; finish the job on these hosts, and collect their parts here")
    out.print(f"complete: {files[0]}", markup=False)


def _report(output: pathlib.Path, tally: api.Tally, missing: list[str], hosts: int) -> None:
    parts = [f"{tally.answered:,} rows answered"]
    parts += [f"{tally.before:,} answered before"] if tally.before else []
    parts += [f"{tally.failed:,} failed"] if tally.failed else []
    out.print(f"{', '.join(parts)}: {output}", markup=False)
    if math.isfinite(tally.utilisation.fraction):
        err.print(f"{tally.tokens:,} tokens; rows of the batch were busy {tally.utilisation.fraction:.0%} of the time")
    if missing:
        err.print(f"Not all of the {hosts} parts are complete here: {'; '.join(missing)}.", markup=False)
        err.print(
            f"The last host to finish writes {output}; or collect the parts here and run --merge {output}.",
            markup=False,
        )
