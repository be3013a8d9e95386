"""Datastores for REST: made once of texts, kept in one file."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from eagle_jax.chat.conversations import Conversation, Skipped, read
from eagle_jax.drafters.rest import Datastore
from eagle_jax.durable import replacing
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
    """Writes a datastore of the texts in `files`, and returns how many texts and tokens it holds.

    Args:
        files: conversations in any form that training reads (`.json`, `.jsonl`), which enter as the chat template says
            them, or plain text, one document a file.
        to: the file to write; it appears whole or not at all, and may take the place of an older datastore.
        limit: most tokens; what comes later is left out.
        progress: called with the number of tokens so far.
        skipped: called with each record that is no conversation, or that the chat template refuses, and why.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: there is no tokenizer, a file cannot be read, there is no text in any file, or `to` is one of them,
            a folder, or something else than a datastore.
    """
    if tokenizer is None:
        raise ValueError("a datastore is made of tokens, but the model's folder holds no tokenizer")
    to = Path(to)
    _check_free(to, files)
    texts: list[list[int]] = []
    left_out: list[Skipped] = []
    tokens = 0
    for text in (text for file in files for text in _texts(Path(file), tokenizer)):
        if isinstance(text, Skipped):
            left_out.append(text)
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
        why = f" (records left out: {len(left_out)}, {left_out[0].place}: {left_out[0].reason})" if left_out else ""
        raise ValueError(f"no text in {', '.join(map(str, files))}{why}; a datastore needs one that is not empty")
    store = Datastore.of(texts)
    about = {"kind": KIND, "tokenizer": fingerprint(tokenizer)}
    to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as file:
        file.write(save({"tokens": np.asarray(store.tokens), "order": np.asarray(store.order)}, metadata=about))
    return len(texts), tokens


def read_datastore(path: str | Path, tokenizer: Any) -> Datastore:
    """Reads a datastore from its file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, no datastore, or made with another tokenizer.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not there; expected a file that `eagle-jax datastore` made")
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            if about.get("kind") != KIND or set(file.keys()) != {"tokens", "order"}:
                raise ValueError(f"{path} is no datastore; expected a file that `eagle-jax datastore` made")
            tokens, order = file.get_tensor("tokens"), file.get_tensor("order")
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}; make it again with `eagle-jax datastore`") from error
    if tokenizer is not None and about.get("tokenizer") != fingerprint(tokenizer):
        raise ValueError(f"{path} was made with another tokenizer than the target's; make one with the target's")
    return Datastore(tokens=jnp.asarray(tokens, jnp.int32), order=jnp.asarray(order, jnp.int32))


def _check_free(to: Path, files: Sequence[str | Path]) -> None:
    """Refuses to write over anything but a datastore."""
    if to.is_dir():
        raise ValueError(f"{to} is a folder; name a file for the datastore")
    if not to.exists():
        return
    if any(to.samefile(file) for file in files):
        raise ValueError(f"{to} is input and output; name another output")
    try:
        with safe_open(to, framework="numpy") as file:
            about = file.metadata() or {}
    except (SafetensorError, OSError):
        about = {}
    if about.get("kind") != KIND:
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
