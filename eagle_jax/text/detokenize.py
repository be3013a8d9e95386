"""From token ids to text, whole characters at a time, and the search for stop strings."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
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


class Spelling:
    """What each token of an answer adds to its text, token by token in their order.

    A tokenizer's decoder does not spell a token alone as it does in a text (Llama 2's drops the space before a word),
    so each is decoded behind its neighbour.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the last tokens that made whole characters, and those since
        self._whole = 0  # how many of these the former are
        self._told = 0  # characters of theirs that were told
        self.length = 0  # characters of the answer so far

    def add(self, token_id: int) -> str:
        """Characters that are whole with this token; none of a special token, or of the first bytes of a character."""
        text = decode(self._tokenizer, [*self._ids, token_id])
        complete = text.rstrip(INCOMPLETE)
        new = complete[self._told :]
        self._ids.append(token_id)
        self._told, self.length = len(complete), self.length + len(new)
        if new and complete == text:
            self._ids = self._ids[self._whole :]
            self._whole = len(self._ids)
            self._told = len(decode(self._tokenizer, self._ids))
        return new

    def would_add(self, token_id: int) -> str:
        """What `add` would return, of a token that is not taken."""
        return decode(self._tokenizer, [*self._ids, token_id]).rstrip(INCOMPLETE)[self._told :]


@functools.lru_cache(maxsize=8)
def _byte_tokens(tokenizer: Any) -> dict[int, int]:
    """The byte of each token `<0x00>` ... `<0xFF>`; empty for a tokenizer without byte fallback."""
    vocabulary = tokenizer.get_vocab()
    tokens = {vocabulary.get(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {} if None in tokens else tokens


def _whole_characters(token_ids: Sequence[int], byte_of: dict[int, int]) -> list[int]:
    """The tokens, with what is no UTF-8 in runs of byte tokens replaced by the bytes of U+FFFD.

    Llama 2's tokenizer spells rare characters with byte tokens, and of a run that ends within a character it decodes
    every byte to U+FFFD, the whole characters before it too: two emojis would lose the first while the second comes.
    """
    token_of = {byte: token for token, byte in byte_of.items()}
    ids: list[int] = []
    for is_bytes, run in itertools.groupby(token_ids, byte_of.__contains__):
        if is_bytes:
            characters = bytes(byte_of[token] for token in run).decode(errors="replace")
            ids.extend(token_of[byte] for byte in characters.encode())
        else:
            ids.extend(run)
    return ids
