"""The bytes that each token of a vocabulary adds to a text."""

import functools
import json
import re
from typing import Any

from eagle_jax.text.detokenize import decode

SPECIAL = b"\xff"  # no UTF-8 has it, so no special token is part of a text
MARK = re.compile(r"<[^<>{}\s]+>|\[/?[A-Z_]+\]")  # how special tokens are written
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "▁"  # a space, in SentencePiece's spelling


@functools.lru_cache(maxsize=8)
def token_bytes(tokenizer: Any, vocab_size: int) -> tuple[bytes, ...]:
    """Returns the bytes of each token id; b"" for ids that the tokenizer does not have.

    Special tokens have `SPECIAL` before their content.

    Raises:
        ValueError: the tokenizer spells tokens in a way that is not known.
    """
    spelt: list[bytes] = [b""] * vocab_size
    added = {id_: token for id_, token in tokenizer.added_tokens_decoder.items() if id_ < vocab_size}
    spell = _spelling_of(tokenizer)
    for token, id_ in tokenizer.get_vocab().items():
        if id_ < vocab_size and id_ not in added:
            spelt[id_] = b"" if SPECIAL in (word := spell(token)) else word
    for id_, token in added.items():
        spelt[id_] = (SPECIAL if token.special else b"") + token.content.encode()
    return tuple(spelt)


def drops_first_space(tokenizer: Any, vocab_size: int) -> bool:
    """Returns whether a text's first token is decoded without the space that it begins with elsewhere."""
    spelt = token_bytes(tokenizer, vocab_size)
    spaced = next((id_ for id_, word in enumerate(spelt) if word[:1] == b" " and word[1:].isalpha()), None)
    return spaced is not None and not decode(tokenizer, [spaced]).startswith(" ")


def _spelling_of(tokenizer: Any) -> Any:
    """Returns the function that makes bytes of a token's name in the vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # those that are written in Python have none
    decoder = '"none"' if backend is None else json.dumps(json.loads(backend.to_str()).get("decoder"))
    if '"ByteLevel"' in decoder:
        table = _bytes_of_characters()
        # a character beyond the 256 stands in no text
        return lambda token: bytes(table[c] for c in token) if all(c in table for c in token) else b""
    if '"ByteFallback"' in decoder:
        return lambda token: _byte_of(token) or _words(token)
    if _WORD_START in decoder or '"Metaspace"' in decoder:
        return _words
    if decoder == "null":  # tokens are put together with spaces
        return lambda token: b" " + token.encode()
    if decoder == '{"type": "Fuse"}':
        return lambda token: token.encode()
    raise ValueError(
        "structured output needs to know how the tokenizer spells its tokens, and this one's decoder is of no known "
        "kind; expected byte-level BPE or one like SentencePiece's"
    )


def _byte_of(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else b""


def _words(token: str) -> bytes:
    return token.replace(_WORD_START, " ").encode()


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """Returns the byte that each character of a byte-level vocabulary stands for.

    Printable characters stand for their own bytes, the others are in order from U+0100 (GPT-2's table).
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}
