"""Makes and reads datastores for REST, which hold tokenized texts in one file."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from eagle_jax.chat.conversations import Conversation, Skipped, read
from eagle_jax.drafters.rest import Datastore
from eagle_jax.durable import atomic_write
from eagle_jax.text.tokenizers import fingerprint

KIND = "eagle_jax datastore"


def make_datastore(
    tokenizer: Any,
    files: Sequence[str | Path],
    to: str | Path,
    *,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
    skipped: Callable[[Skipped], None] | None = None,
) -> tuple[int, int]:
    """Writes a datastore of the texts in `files`, and returns its numbers of texts and tokens.

    Args:
        files: conversations in any form that training reads (`.json`, `.jsonl`), rendered by the chat template, or
            plain text, one document a file.
        to: the file to write, atomically; an older datastore is replaced.
        limit: maximum number of tokens; later texts are left out.
        progress: called with the number of tokens so far.
        skipped: called with each record that is not a conversation or that the chat template refuses, and the reason.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: there is no tokenizer, a file cannot be read, all files are empty, or `to` is one of the files, a
            folder, or a file that is not a datastore.
    """
    if tokenizer is None:
        raise ValueError("a datastore is made of tokens, but the model's folder holds no tokenizer")
    to = Path(to)
    _check_free(to, files)
    texts: list[list[int]] = []
    skipped_records: list[Skipped] = []
    tokens = 0
    for text in (text for file in files for text in _texts(Path(file), tokenizer)):
        if isinstance(text, Skipped):
            skipped_records.append(text)
            if skipped is not None:
                skipped(text)
            continue
        if not text:
            continue
        texts.append(text if limit is None else text[: limit - tokens])
        tokens += len(texts[-1])
        if progress is not None:
            progress(tokens)
        if limit is not None and tokens >= limit:
            break
    if not tokens:
        reason = ""
        if skipped_records:
            first = skipped_records[0]
            reason = f" (records left out: {len(skipped_records)}, {first.place}: {first.reason})"
        raise ValueError(f"no text in {', '.join(map(str, files))}{reason}; a datastore needs one that is not empty")
    store = Datastore.of(texts)
    metadata = {"kind": KIND, "tokenizer": fingerprint(tokenizer)}
    to.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(to) as file:
        file.write(save({"tokens": np.asarray(store.tokens), "order": np.asarray(store.order)}, metadata=metadata))
    return len(texts), tokens


def read_datastore(path: str | Path, tokenizer: Any) -> Datastore:
    """Reads a datastore from its file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, not a datastore, or made with another tokenizer.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not there; expected a file that `eagle-jax datastore` made")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != KIND or set(file.keys()) != {"tokens", "order"}:
                raise ValueError(f"{path} is no datastore; expected a file that `eagle-jax datastore` made")
            tokens, order = file.get_tensor("tokens"), file.get_tensor("order")
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}; make it again with `eagle-jax datastore`") from error
    if tokenizer is not None and metadata.get("tokenizer") != fingerprint(tokenizer):
        raise ValueError(f"{path} was made with another tokenizer than the target's; make one with the target's")
    return Datastore(tokens=jnp.asarray(tokens, jnp.int32), order=jnp.asarray(order, jnp.int32))


def _check_free(to: Path, files: Sequence[str | Path]) -> None:
    """Raises ValueError if `to` exists and is not a datastore."""
    if to.is_dir():
        raise ValueError(f"{to} is a folder; name a file for the datastore")
    if not to.exists():
        return
    if any(to.samefile(file) for file in files):
        raise ValueError(f"{to} is input and output; name another output")
    try:
        with safe_open(to, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError):
        metadata = {}
    if metadata.get("kind") != KIND:
        raise ValueError(f"{to} is there already and is no datastore; name another file")


def _texts(path: Path, tokenizer: Any) -> Iterator[list[int] | Skipped]:
    if path.suffix not in (".json", ".jsonl"):
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
        yield tokenizer.encode(text, add_special_tokens=False)
        return
    for item in read(path):
        entry = item if isinstance(item, Skipped) else _rendered(item, tokenizer)
        yield entry if isinstance(entry, Skipped) else tokenizer.encode(entry, add_special_tokens=False)


def _rendered(conversation: Conversation, tokenizer: Any) -> str | Skipped:
    messages = list(conversation.messages)
    if not getattr(tokenizer, "chat_template", None):
        return "\n".join(message["content"] for message in messages)
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError as error:
        return Skipped(conversation.place, f"it does not fit the model's chat template ({error})")
