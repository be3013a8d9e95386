"""Loads tokenizers, and compares their vocabularies."""

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from eagle_jax.converters.errors import first_sentence
from eagle_jax.converters.files import is_gguf, read_json
from eagle_jax.converters.gguf.tokenizer import tokenizer_of

# Vocabulary files other than tokenizer.json, and the packages that transformers needs for each kind: package -> module.
_MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_READERS = {
    "SentencePiece": {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"},
    "tiktoken": {"tiktoken": "tiktoken"},
}


def tokenizer_in(folder: Path) -> Any:
    """Loads the tokenizer of a model folder or GGUF file; returns None if it has none.

    Raises:
        ValueError: its files are damaged, or transformers cannot read them.
    """
    if is_gguf(folder):
        return _without_length_warning(tokenizer_of(folder))
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    if not (folder / "tokenizer.json").exists():
        logging.set_verbosity_error()  # transformers warns of each reader that fails
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise many types, even bare Exception
        raise ValueError(f"the tokenizer in {folder} cannot be read ({_reason(folder, error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):
        raise ValueError(f"the tokenizer in {folder} has only special tokens; copy or download its files again")
    template_file = folder / "chat_template.json"  # written by processors
    if not getattr(tokenizer, "chat_template", None) and template_file.exists():
        tokenizer.chat_template = read_json(template_file).get("chat_template")
    return _without_length_warning(tokenizer)


def _reason(folder: Path, error: Exception) -> str:
    """Returns why a tokenizer cannot be read, and what to do.

    Transformers tries several readers and raises the error of the last one, for tiktoken files.
    """
    path = next((folder / name for name in _MODEL_FILES if (folder / name).exists()), None)
    if path is None or (folder / "tokenizer.json").exists():
        lacks_package = isinstance(error, ImportError) or re.search("is required|requires|not installed", str(error))
        remedy = "install what it needs" if lacks_package else "copy or download its files again"
        return f"{first_sentence(error)}); {remedy}"
    content = path.read_bytes()
    kind = "tiktoken" if re.match(rb"[A-Za-z0-9+/]+=* \d+\n", content) else "SentencePiece"
    missing = [name for name, module in _READERS[kind].items() if not _is_installed(module)]
    if not content or content.startswith(b"version https://git-lfs") or not missing:
        return f"{path.name} is not a {kind} model, or it is damaged); copy or download it again"
    return f"{path.name} is a {kind} model, which needs {' and '.join(missing)}); pip install {' '.join(missing)}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent package is not installed, or is blocked
        return False


def with_template(tokenizer: Any, chat_template: str | Path) -> Any:
    """Sets the tokenizer's chat template to one of its named templates, or to the content of a file.

    Raises:
        ValueError: there is no tokenizer, or neither a template nor a file of that name.
    """
    if tokenizer is None:
        raise ValueError("a chat template needs a tokenizer, but the model's folder has none; leave it out")
    templates = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else {}
    if str(chat_template) in templates:
        tokenizer.chat_template = templates[str(chat_template)]
    elif Path(chat_template).is_file():
        tokenizer.chat_template = Path(chat_template).read_text(encoding="utf-8-sig")
    else:
        names = f", or one of the names {', '.join(templates)}" if templates else ""
        raise ValueError(f"chat_template={str(chat_template)!r} is not a file; expected a Jinja template{names}")
    return tokenizer


def _without_length_warning(tokenizer: Any) -> Any:
    if tokenizer is not None:
        # transformers would warn of long texts, which are rejected or truncated here
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def fingerprint(tokenizer: Any) -> str:
    """Returns the SHA-256 digest of the vocabulary."""
    vocabulary = sorted((int(id_), token) for token, id_ in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def refuse_other_tokenizer(target: Any, drafter_tokenizer: Any, whose: str) -> None:
    """Raises ValueError if two tokenizers have different vocabularies; a missing tokenizer is not checked."""
    if target is None or drafter_tokenizer is None:
        return
    target_vocab, other_vocab = target.get_vocab(), drafter_tokenizer.get_vocab()
    if target_vocab == other_vocab:
        return
    different = sum(target_vocab.get(token) != id_ for token, id_ in other_vocab.items()) + len(
        target_vocab.keys() - other_vocab.keys()
    )
    raise ValueError(
        f"{whose} has another tokenizer than the target: {different} of their tokens differ; a drafter needs the "
        "target's vocabulary, so use one of the same family"
    )
