"""`eagle-jax regenerate`: conversations answered anew by the target."""

import pathlib
from typing import Annotated

import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import load, one_sentence, out, progress_bar


@one_sentence
def regenerate(
    data: Annotated[pathlib.Path, typer.Argument(help="Conversations, in any form that train reads.", metavar="DATA")],
    to: Annotated[pathlib.Path, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Where the answers go.")],
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Answer only the first so many.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Answers decoded together.")] = 32,
    write_every: Annotated[
        int | None, typer.Option("--write-every", min=1, help="Conversations between two writes (4 batches).")
    ] = None,
    target: options.Target = None,
    head: options.Head = None,
    target_config: options.TargetConfig = None,
    head_config: options.HeadConfig = None,
    dtype: options.Dtype = None,
    quantize: options.Quantize = None,
    mesh: options.Mesh = None,
    max_new_tokens: options.MaxNewTokens = 1024,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
) -> None:
    """Let the target answer conversations itself, as text for a head to learn from.

    The same command continues an interrupted file: nothing is answered twice, and the file comes out the same. With
    other data, another target or other options it does not, and says what is different. With a head the same text comes
    faster.

    **Examples**

    - `eagle-jax regenerate chats.jsonl --target ./llama --out answers.jsonl`

    - `eagle-jax regenerate chats.jsonl --out answers.jsonl --temperature 1 --top-p 0.95 --limit 1000`
    """
    model = load(
        target, head, dtype, target_config=target_config, head_config=head_config, quantize=quantize, mesh=mesh
    )
    made_with = {
        "target": api.fingerprints(target, head)["target"],
        "dtype": model.dtype,
        "quantize": None if (quantize or "").startswith("draft:") else quantize,  # what drafts changes no answer
        **({} if target_config is None else {"target_config": target_config}),
    }
    with progress_bar("Answering") as bar:
        task = bar.add_task("", total=None)
        result = api.regenerate(
            model,
            data,
            to,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            batch_size=batch_size,
            write_every=write_every,
            limit=limit,
            made_with=made_with,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    parts = [f"{result.answered} conversations answered"]
    parts += [f"{result.before} were there before"] if result.before else []
    parts += [f"{result.cut} cut at {max_new_tokens} tokens"] if result.cut else []
    parts += [f"{result.skipped} skipped"] if result.skipped else []
    out.print(f"{', '.join(parts)}: {to}", markup=False)
