"""`eagle-jax regenerate`: lets the target answer conversations again."""

import dataclasses
import pathlib
from typing import Annotated, Any

import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import counting, one_sentence, out


@dataclasses.dataclass(frozen=True)
class Sampling(options.SamplingOptions):
    """The same, without `--min-p`."""

    min_p: float = dataclasses.field(default=0.0, init=False)


@one_sentence
def regenerate(
    data: Annotated[pathlib.Path, typer.Argument(help="Conversations, in any form that train reads.", metavar="DATA")],
    to: Annotated[pathlib.Path, options.option("--out -o OUT.jsonl", "File for the answers.")],
    limit: Annotated[int | None, options.option("--limit", "Answer only the first N conversations.", min=1)] = None,
    batch_size: Annotated[int, options.option("--batch-size", "Answers decoded together.", min=1)] = 32,
    write_every: Annotated[
        int | None, options.option("--write-every", "Conversations between two writes; 4 batches by default.", min=1)
    ] = None,
    pair: options.ModelOptions = options.ModelOptions(),
    sampling: Sampling = Sampling(max_new_tokens=1024),
) -> None:
    """Let the target answer conversations itself, as training data for a head.

    The same command continues an interrupted file: nothing is answered twice, and the file is the same in the end.
    With other data, another target or other options it is refused, with the difference. A head makes it faster, with
    the same text.

    **Examples**

    - `eagle-jax regenerate chats.jsonl --target ./llama --out answers.jsonl`

    - `eagle-jax regenerate chats.jsonl --out answers.jsonl --temperature 1 --top-p 0.95 --limit 1000`
    """
    model = pair.load()
    made_with = {
        "target": api.fingerprints(pair.target, pair.head)["target"],
        "dtype": model.dtype,
        # the drafter changes no answer
        "quantize": None if (pair.quantize or "").startswith("draft:") else pair.quantize,
        **pair.given("target_config"),
    }
    request: dict[str, Any] = dict(batch_size=batch_size, write_every=write_every, limit=limit, **sampling.request)
    with counting("Answering") as progress:
        result = api.regenerate(model, data, to, made_with=made_with, progress=progress, **request)
    parts = [f"{result.answered} conversations answered"]
    parts += [f"{result.before} answered before"] if result.before else []
    parts += [f"{result.cut} cut at {sampling.max_new_tokens} tokens"] if result.cut else []
    parts += [f"{result.skipped} skipped"] if result.skipped else []
    out.print(f"{', '.join(parts)}: {to}", markup=False)
