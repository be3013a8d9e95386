"""`eagle-jax datastore`: texts to draft from, for `--drafter rest`."""

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
    to: Annotated[pathlib.Path, options.option("--out -o OUT", "Where the datastore goes.")],
    target: options.Target = None,
    limit: Annotated[int | None, options.option("--limit", "Most tokens; the rest is left out.", min=1)] = None,
) -> None:
    """Make a datastore of texts: what `--drafter rest` looks up and copies.

    The more the texts are like the answers to come, the more of them it drafts: answers of the same model do best, then
    texts of the same kind. It is made with the target's tokenizer and takes 8 bytes a token.

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
        err.print(f"Records left out: {len(skipped):,}, the first at {first}.", markup=False)
