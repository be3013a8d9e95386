"""Tokenizers: where they are, and whether two are the same."""

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from eagle_jax.converters.errors import first_sentence
from eagle_jax.converters.files import is_gguf, read_json
from eagle_jax.converters.gguf.tokenizer import tokenizer_of

# Vocabularies that are not written as tokenizer.json, and what transformers reads each kind with: package -> module.
_MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_READERS = {
    "SentencePiece": {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"},
    "tiktoken": {"tiktoken": "tiktoken"},
}


def tokenizer_in(folder: Path) -> Any:
    """Returns the tokenizer of a model folder or GGUF file; None if it has none.

    Raises:
        ValueError: its files are damaged, or of a kind that transformers cannot read here.
    """
    if is_gguf(folder):
        return _quiet(tokenizer_of(folder))
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    if not (folder / "tokenizer.json").exists():
        logging.set_verbosity_error()  # it warns of each reader that it tries in vain
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise many kinds, some of them bare ones
        raise ValueError(f"the tokenizer in {folder} cannot be read ({_reason(folder, error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):
        raise ValueError(f"the tokenizer in {folder} has special tokens alone; copy or download its files again")
    template_file = folder / "chat_template.json"  # where processors keep it
    if not getattr(tokenizer, "chat_template", None) and template_file.exists():
        tokenizer.chat_template = read_json(template_file).get("chat_template")
    return _quiet(tokenizer)


def _reason(folder: Path, error: Exception) -> str:
    """Returns why a tokenizer cannot be read, and what to do.

    Transformers tries one reader after another, and its error is that of the last one, which reads tiktoken's files.
    """
    path = next((folder / name for name in _MODEL_FILES if (folder / name).exists()), None)
    if path is None or (folder / "tokenizer.json").exists():
        needs = isinstance(error, ImportError) or re.search("is required|requires|not installed", str(error))
        return f"{first_sentence(error)}); {'install what it needs' if needs else 'copy or download its files again'}"
    content = path.read_bytes()
    kind = "tiktoken" if re.match(rb"[A-Za-z0-9+/]+=* \d+\n", content) else "SentencePiece"
    lacking = [name for name, module in _READERS[kind].items() if not _is_installed(module)]
    if not content or content.startswith(b"version https://git-lfs") or not lacking:
        return f"{path.name} is no {kind} model, or a damaged one); copy or download it again"
    return f"{path.name} is a {kind} model, which needs {' and '.join(lacking)}); pip install {' '.join(lacking)}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the package around it is not there, or is blocked
        return False


def with_template(tokenizer: Any, chat_template: str | Path) -> Any:
    """Returns the tokenizer with the chat template of a file, or with the one of its own templates of that name.

    Raises:
        ValueError: there is no tokenizer, or neither a template nor a file of that name.
    """
    if tokenizer is None:
        raise ValueError("a chat template needs a tokenizer, but the model's folder holds none; leave it out")
    named = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else {}
    if str(chat_template) in named:
        tokenizer.chat_template = named[str(chat_template)]
    elif Path(chat_template).is_file():
        tokenizer.chat_template = Path(chat_template).read_text(encoding="utf-8-sig")
    else:
        names = f", or one of the names {', '.join(named)}" if named else ""
        raise ValueError(f"chat_template={str(chat_template)!r} is no file; expected one with a Jinja template{names}")
    return tokenizer


def _quiet(tokenizer: Any) -> Any:
    if tokenizer is not None:
        # what is too long is refused or cut here, and never runs into the errors that transformers would warn of
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def fingerprint(tokenizer: Any) -> str:
    """Tells vocabularies apart: the same tokens with the same ids give the same 64 characters."""
    vocabulary = sorted((int(id_), token) for token, id_ in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def refuse_other_tokenizer(target: Any, other: Any, whose: str) -> None:
    """Refuses a model with other tokens than the target's; not checked where one of the two has no tokenizer.

    Raises:
        ValueError: `other` gives a token another id, or has other tokens.
    """
    if target is None or other is None:
        return
    target_vocab, other_vocab = target.get_vocab(), other.get_vocab()
    if target_vocab == other_vocab:
        return
    different = sum(target_vocab.get(token) != id_ for token, id_ in other_vocab.items()) + len(
        target_vocab.keys() - other_vocab.keys()
    )
    raise ValueError(
        f"{whose} has another tokenizer than the target: {different} of their tokens differ; a drafter has to speak of "
        "the target's own tokens, so use one of the same family"
    )
