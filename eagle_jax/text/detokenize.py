"""From token ids to text, whole characters at a time, and the search for stop strings."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

INCOMPLETE = "\ufffd"  # what a decoder makes of the bytes of an incomplete character


@dataclasses.dataclass(frozen=True)
class StopHit:
    """Where a stop string was found: the text before it, and how many tokens it took to complete it."""

    text: str
    tokens: int


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Text of an answer; special tokens have none. Without a tokenizer there is no text.

    More tokens never change the text but for U+FFFD at its end, where a character is still incomplete.
    """
    if tokenizer is None:
        return ""
    ids = _whole_characters(token_ids, _byte_tokens(tokenizer))
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def find_stop(tokenizer: Any, token_ids: Sequence[int], stop: Sequence[str]) -> StopHit | None:
    """The earliest stop string in the answer so far; None if there is none.

    The answer ends with the first token that completes a stop string, however many tokens were decoded beyond it. A
    U+FFFD at the end is not searched: it may yet become a character.
    """

    def certain(count: int) -> str:
        return decode(tokenizer, token_ids[:count]).rstrip(INCOMPLETE)

    if not stop or not any(s in certain(len(token_ids)) for s in stop):
        return None
    low, high = 1, len(token_ids)
    while low < high:
        middle = (low + high) // 2
        is_found = any(s in certain(middle) for s in stop)
        low, high = (low, middle) if is_found else (middle + 1, high)
    text = certain(low)
    return StopHit(text=text[: min(text.find(s) for s in stop if s in text)], tokens=low)


def settled(text: str, stop: Sequence[str]) -> str:
    """The part of an unfinished answer that no later token can change or take back.

    An incomplete character decodes to U+FFFD at the end, and an end that may turn out to begin a stop string is held
    back.
    """
    text = text.rstrip(INCOMPLETE)
    num_held = 0
    for string in stop:
        for size in range(min(len(string) - 1, len(text)), num_held, -1):
            if text.endswith(string[:size]):
                num_held = size
                break
    return text[: len(text) - num_held]


class IncrementalDetokenizer:
    """The text of an answer token by token: `add` returns what each one adds.

    A tokenizer's decoder does not decode a token alone as it does in a text (Llama 2's drops the space before a word),
    so each is decoded behind its neighbours.

    Attributes:
        length: characters of the answer so far.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        # tokens that are decoded together: the last ones that ended on a whole character, and those since
        self._window: list[int] = []
        self._prefix_tokens = 0  # how many the former are
        self._emitted = 0  # characters of the window's text that were returned
        self.length = 0

    def add(self, token_id: int) -> str:
        """Characters that are whole with this token; none of a special token, or of the first bytes of a character."""
        text = decode(self._tokenizer, [*self._window, token_id])
        complete = text.rstrip(INCOMPLETE)
        new = complete[self._emitted :]
        self._window.append(token_id)
        self._emitted, self.length = len(complete), self.length + len(new)
        if new and complete == text:
            self._window = self._window[self._prefix_tokens :]
            self._prefix_tokens = len(self._window)
            self._emitted = len(decode(self._tokenizer, self._window))
        return new

    def would_add(self, token_id: int) -> str:
        """What `add` would return, of a token that is not taken."""
        return decode(self._tokenizer, [*self._window, token_id]).rstrip(INCOMPLETE)[self._emitted :]


@dataclasses.dataclass(frozen=True)
class ByteTokens:
    """The tokens `<0x00>` ... `<0xFF>` of a tokenizer; none for one without byte fallback."""

    byte_of: Mapping[int, int]
    token_of: Mapping[int, int]


@functools.lru_cache(maxsize=8)
def _byte_tokens(tokenizer: Any) -> ByteTokens:
    vocabulary = tokenizer.get_vocab()
    token_of = {byte: vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)}
    if None in token_of.values():
        return ByteTokens({}, {})
    return ByteTokens({token: byte for byte, token in token_of.items()}, token_of)


def _whole_characters(token_ids: Sequence[int], byte_tokens: ByteTokens) -> list[int]:
    """The tokens, with what is no UTF-8 in runs of byte tokens replaced by the bytes of U+FFFD.

    Llama 2's tokenizer spells rare characters with byte tokens, and of a run that ends within a character it decodes
    every byte to U+FFFD, the whole characters before it too: two emojis would lose the first while the second comes.
    """
    byte_of, token_of = byte_tokens.byte_of, byte_tokens.token_of
    ids: list[int] = []
    for is_bytes, run in itertools.groupby(token_ids, byte_of.__contains__):
        if is_bytes:
            characters = bytes(byte_of[token] for token in run).decode(errors="replace")
            ids.extend(token_of[byte] for byte in characters.encode())
        else:
            ids.extend(run)
    return ids
