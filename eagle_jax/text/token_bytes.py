"""The bytes that each token of a vocabulary adds to a text."""

import functools
import json
import re
from typing import Any

from eagle_jax.text.detokenize import decode

SPECIAL = b"\xff"  # not in UTF-8, so that no special token is part of a text
MARK = re.compile(r"<[^<>{}\s]+>|\[/?[A-Z_]+\]")  # how special tokens are written
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "▁"  # a space, in SentencePiece's spelling


@functools.lru_cache(maxsize=8)
def token_bytes(tokenizer: Any, vocab_size: int) -> tuple[bytes, ...]:
    """Returns the bytes of each token id; b"" for unknown ids, and `SPECIAL` before the content of special tokens.

    Raises:
        ValueError: the tokenizer's decoder is unknown.
    """
    bytes_of: list[bytes] = [b""] * vocab_size
    added = {id_: token for id_, token in tokenizer.added_tokens_decoder.items() if id_ < vocab_size}
    spell = _token_to_bytes(tokenizer)
    for token, id_ in tokenizer.get_vocab().items():
        if id_ < vocab_size and id_ not in added:
            bytes_of[id_] = b"" if SPECIAL in (word := spell(token)) else word
    for id_, token in added.items():
        bytes_of[id_] = (SPECIAL if token.special else b"") + token.content.encode()
    return tuple(bytes_of)


def drops_first_space(tokenizer: Any, vocab_size: int) -> bool:
    """Returns whether decoding drops the space at the beginning of a text."""
    bytes_of = token_bytes(tokenizer, vocab_size)
    example = next((id_ for id_, word in enumerate(bytes_of) if word[:1] == b" " and word[1:].isalpha()), None)
    return example is not None and not decode(tokenizer, [example]).startswith(" ")


def _token_to_bytes(tokenizer: Any) -> Any:
    """Returns the function that converts a token of the vocabulary to bytes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # tokenizers in Python have none
    decoder = '"none"' if backend is None else json.dumps(json.loads(backend.to_str()).get("decoder"))
    if '"ByteLevel"' in decoder:
        table = _bytes_of_characters()
        # tokens with other characters occur in no text
        return lambda token: bytes(table[c] for c in token) if all(c in table for c in token) else b""
    if '"ByteFallback"' in decoder:
        return lambda token: _fallback_byte(token) or _sentencepiece_bytes(token)
    if _WORD_START in decoder or '"Metaspace"' in decoder:
        return _sentencepiece_bytes
    if decoder == "null":  # tokens are joined with spaces
        return lambda token: b" " + token.encode()
    if decoder == '{"type": "Fuse"}':
        return lambda token: token.encode()
    raise ValueError(
        "structured output needs the bytes of every token, but the tokenizer's decoder is of unknown kind; expected "
        "byte-level BPE or one like SentencePiece's"
    )


def _fallback_byte(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else b""


def _sentencepiece_bytes(token: str) -> bytes:
    return token.replace(_WORD_START, " ").encode()


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """Returns the byte for each character of a byte-level vocabulary (GPT-2's table): printable characters stand for
    their own bytes, and characters from U+0100 for the other bytes in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
