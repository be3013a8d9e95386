"""`eagle-jax datastore`: makes the datastore of `--drafter rest`."""

import pathlib
from typing import Annotated, Any

import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import err, one_sentence, out


@one_sentence
def datastore(
    files: Annotated[
        list[pathlib.Path],
        typer.Argument(metavar="FILE...", help="Conversations as train reads them (.json, .jsonl), or plain text."),
    ],
    to: Annotated[pathlib.Path, options.option("--out -o OUT", "File for the datastore.")],
    target: options.Target = None,
    limit: Annotated[int | None, options.option("--limit", "Limit of the datastore, in tokens.", min=1)] = None,
) -> None:
    """Make a datastore of texts, from which `--drafter rest` copies.

    The more the texts resemble the answers, the more tokens are accepted: answers of the same model do best, then texts
    of the same kind. It is made with the target's tokenizer and takes 8 bytes a token.

    **Examples**

    - `eagle-jax datastore chats.jsonl manual.txt --out store.safetensors`

    - `eagle-jax generate --datastore store.safetensors --drafter rest "..."`
    """
    tokenizer = api.tokenizer_of(target)
    skipped: list[Any] = []
    with err.status("Reading") as status:

        def show(tokens: int) -> None:
            status.update(f"Reading: {tokens:,} tokens")

        texts, tokens = api.make_datastore(tokenizer, files, to, limit=limit, progress=show, skipped=skipped.append)
    out.print(f"{texts:,} texts, {tokens:,} tokens: {to}", markup=False)
    if skipped:
        first = f"{skipped[0].place}: {skipped[0].reason}"
        err.print(f"Skipped {len(skipped):,} records, the first at {first}.", markup=False)
